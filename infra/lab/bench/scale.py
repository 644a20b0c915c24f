"""`harmony bench scale`: what a workload and a sample cost as the fleet grows, in CPU time and in memory.

Fleets of every size without model and planner, which shows what the streams cost; then all that a worker does for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.lab.report import document, load_average, print_table, spread, write_json
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.windows.coarse import COARSE_ROWS

_FINE_CELL_BYTES, _COARSE_CELL_BYTES = 4, 2
_TIMEOUT_S = 1_800.0
_SMALL = 10_000  # workloads
_HEADINGS = (
    "workloads", "ingest us/sample", "stage 2 us/workload", "stage 3 us/workload", "MiB", "KiB per further workload",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScaleBench:
    """What to measure.

    Attributes:
        workloads: fleet sizes, ascending; each in one partition and in a process of its own, once without model and
            planner, once forecast, planned and decided.
        slots: measured per fleet, after one in which every name is new; of small fleets up to ten times as many, for a
            slot of theirs is over in milliseconds.
        planned_slots: likewise where it is planned.
    """

    workloads: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    slots: int = 3
    planned_slots: int = 2
    seed: int = 1


def run_scale_bench(bench: ScaleBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: a fleet could not be measured, for instance for want of memory.
    """
    loads = [load_average()]
    job = {"seed": bench.seed}
    fleets = [_measured({"workloads": n, "slots": slots_of(bench.slots, n), **job}, loads) for n in bench.workloads]
    planned = [
        _measured({"workloads": n, "slots": slots_of(bench.planned_slots, n), **job, "planned": True}, loads)
        for n in bench.workloads
    ]
    results = {
        "fleets": fleets,
        "kb_per_workload": slopes(fleets),
        "ring_kb_per_workload": ring_kb(),
        "planned": {"fleets": planned, "kb_per_workload": slopes(planned)},
    }
    body = document("scale", asdict(bench), results, loads)
    write_json(out, body)
    _show(results)
    return body


def slots_of(least: int, workloads: int) -> int:
    """Slots of a fleet of this size, where a large one has the least."""
    return least * min(max(_SMALL // workloads, 1), 10)


def _measured(job: Mapping[str, int], loads: list[float]) -> dict[str, Any]:
    workloads = job["workloads"]
    say(f"{workloads:,} workloads{', planned' if 'planned' in job else ''} ...")
    told = _run(job)
    samples = told["samples_per_slot"]
    loads.append(load_average())
    return {
        "workloads": workloads,
        "samples_per_slot": samples,
        "ingest_us_per_sample": spread([1e6 * s / samples for s in told["ingest_s"]]),
        "forecast_us_per_workload": spread([1e6 * s / workloads for s in told["forecast_s"]]),
        "decide_us_per_workload": spread([1e6 * s / workloads for s in told["decide_s"]]),
        "resident_kb": told["resident_kb"],
    }


def slopes(fleets: Sequence[Mapping[str, Any]]) -> list[float]:
    """KiB per further workload, from one fleet to the next."""
    return [(b["resident_kb"] - a["resident_kb"]) / (b["workloads"] - a["workloads"]) for a, b in pairwise(fleets)]


def ring_kb() -> float:
    """The floor: every cell of both rings."""
    demand = sum(indicator.level == 1 for indicator in DEFAULT_CATALOGUE)
    fine = StreamConfig().context_steps * len(DEFAULT_CATALOGUE)
    return (_FINE_CELL_BYTES * fine + _COARSE_CELL_BYTES * COARSE_ROWS * demand) / 1024


def _run(job: Mapping[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", f"{__package__}.scale_subject", json.dumps(job)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise HarmonyError(f"{job['workloads']:,} workloads took more than {_TIMEOUT_S:.0f} s.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise HarmonyError(f"{job['workloads']:,} workloads could not be measured: {last}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # the first run of a version says that it compiles
    return told


def _show(results: dict[str, Any]) -> None:
    print_table(_HEADINGS, _rows(results), f"{_spread_of(results)} Without model and planner.\n")
    print_table(
        _HEADINGS,
        _rows(results["planned"]),
        f"{_spread_of(results['planned'])} Planned and decided. Both rings alone are "
        f"{results['ring_kb_per_workload']:.1f} KiB per workload.",
    )


def _spread_of(results: Mapping[str, Any]) -> str:
    costs = [workload_us(fleet) for fleet in results["fleets"]]
    return f"A workload of the dearest fleet costs {max(costs) / min(costs):.2f} x one of the cheapest."


def workload_us(fleet: Mapping[str, Any]) -> float:
    """What a workload costs in stages 2 and 3 per slot, in microseconds of CPU time."""
    return float(fleet["forecast_us_per_workload"]["median"] + fleet["decide_us_per_workload"]["median"])


def _rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    gained: Sequence[float | None] = [None, *results["kb_per_workload"]]
    return [
        (
            f"{fleet['workloads']:,}",
            f"{fleet['ingest_us_per_sample']['median']:.1f}",
            f"{fleet['forecast_us_per_workload']['median']:.0f}",
            f"{fleet['decide_us_per_workload']['median']:.0f}",
            f"{fleet['resident_kb'] / 1024:.0f}",
            "-" if slope is None else f"{slope:.1f}",
        )
        for fleet, slope in zip(results["fleets"], gained, strict=True)
    ]
