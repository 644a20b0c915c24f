"""The most memory that this process has held. `ru_maxrss` would also count what its parent held when it was started."""

from __future__ import annotations

from pathlib import Path


def peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
