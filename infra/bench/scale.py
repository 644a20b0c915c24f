"""`harmony bench scale`: what a workload and a sample cost as the fleet grows, in CPU time and in memory.

Stages 1 and 2 alone with fleets of every size; then smaller ones that are planned and decided too, for the memory that
this leaves with a workload.
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
from statistics import median
from typing import Any

from infra.bench.report import document, load_average, print_table, spread
from infra.cli_options import say
from infra.errors import HarmonyError
from infra.json_report import write_json
from streams.catalogue import DEFAULT_CATALOGUE
from streams.coarse_ring import COARSE_ROWS
from streams.config import StreamConfig

_FINE_CELL_BYTES, _COARSE_CELL_BYTES = 4, 2
_TIMEOUT_S = 1_800.0
_HEADINGS = ("workloads", "ingest us/sample", "stage 2 us/workload", "MiB", "KiB per further workload")


@dataclass(frozen=True, slots=True)
class ScaleBench:
    """What to measure.

    Attributes:
        workloads: fleet sizes, ascending; each in one partition and in a process of its own.
        slots: measured per fleet, after one in which every name is new.
        planned: fleet sizes, ascending, of which every slot is forecast, planned and decided; above the number up to
            which grids of capacity are kept, which would count as a further workload's.
        planned_slots: of these; enough that as many stated risks end as begin.
    """

    workloads: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    slots: int = 3
    planned: tuple[int, ...] = (2_000, 6_000)
    planned_slots: int = 20
    seed: int = 1


def run_scale_bench(bench: ScaleBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`).

    Raises:
        HarmonyError: a fleet could not be measured, for instance for want of memory.
    """
    loads = [load_average()]
    fleets = _measured(bench.workloads, {"slots": bench.slots, "seed": bench.seed}, loads)
    planned = _measured(bench.planned, {"slots": bench.planned_slots, "seed": bench.seed, "planned": True}, loads)
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


def _measured(sizes: Sequence[int], job: Mapping[str, int], loads: list[float]) -> list[dict[str, Any]]:
    fleets = []
    for workloads in sizes:
        say(f"{workloads:,} workloads{', planned' if 'planned' in job else ''} ...")
        told = _run({"workloads": workloads, **job})
        samples = told["samples_per_slot"]
        fleets.append(
            {
                "workloads": workloads,
                "samples_per_slot": samples,
                "ingest_us_per_sample": spread([1e6 * s / samples for s in told["ingest_s"]]),
                "forecast_us_per_workload": spread([1e6 * s / workloads for s in told["forecast_s"]]),
                "resident_kb": told["resident_kb"],
            }
        )
        loads.append(load_average())
    return fleets


def slopes(fleets: Sequence[Mapping[str, Any]]) -> list[float]:
    """KiB per further workload, from one fleet to the next."""
    return [(b["resident_kb"] - a["resident_kb"]) / (b["workloads"] - a["workloads"]) for a, b in pairwise(fleets)]


def ring_kb() -> float:
    """The floor: every cell of both rings."""
    demand = sum(indicator.level == 1 for indicator in DEFAULT_CATALOGUE)
    fine = StreamConfig().context_steps * len(DEFAULT_CATALOGUE)
    return (_FINE_CELL_BYTES * fine + _COARSE_CELL_BYTES * COARSE_ROWS * demand) / 1024


def _run(job: Mapping[str, int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "infra.bench.scale_subject", json.dumps(job)]
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
    planned = results["planned"]
    costs = [fleet["forecast_us_per_workload"]["median"] for fleet in results["fleets"]]
    print_table(_HEADINGS, _rows(results))
    print_table(
        _HEADINGS,
        _rows(planned),
        f"Both rings alone are {results['ring_kb_per_workload']:.1f} KiB per workload; the dearest fleet's stage 2 "
        f"costs {max(costs) / median(costs):.2f} x the median. The first table is without model and planner, the "
        "second with both.",
    )


def _rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    gained: Sequence[float | None] = [None, *results["kb_per_workload"]]
    return [
        (
            f"{fleet['workloads']:,}",
            f"{fleet['ingest_us_per_sample']['median']:.1f}",
            f"{fleet['forecast_us_per_workload']['median']:.0f}",
            f"{fleet['resident_kb'] / 1024:.0f}",
            "-" if slope is None else f"{slope:.1f}",
        )
        for fleet, slope in zip(results["fleets"], gained, strict=True)
    ]
