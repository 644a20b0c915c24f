"""What every bench writes: the machine, the date, the load, medians with their spread."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any


def machine() -> dict[str, Any]:
    """The class of the machine; nothing that names it."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in described if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model or platform.machine(),
        "memory_gib": round(memory_gib, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def status_mib(field: str, pid: int | str = "self") -> float:
    """A figure of memory of a process as Linux tells it: VmRSS, VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) / 1024


def load_average() -> float:
    """Processes that wanted a core over the last minute."""
    return round(os.getloadavg()[0], 2)


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": median(numbers), "min": min(numbers), "max": max(numbers)}


def percentile(numbers: Sequence[float], level: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(level * len(ordered) - 1e-9) - 1)]


def document(bench: str, job: Mapping[str, Any], results: Any, loads: Sequence[float]) -> dict[str, Any]:
    """The bench as it is stored."""
    return {
        "bench": bench,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "load_average": {"least": min(loads), "most": max(loads)},
        "job": dict(job),
        "results": results,
    }


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """A plain table on stdout: first column left, the others right."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
    for row in (headings, *rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    if note:
        sys.stdout.write(note + "\n")
    sys.stdout.flush()
