"""`make soak`: a worker under steady telemetry for an hour; does it grow, does it fall behind, does it leak files?

Slots of telemetry are published twice a second, ten times as fast as their own time. On two cores a worker bears up to
3.7 slots a second of these workloads. A backlog would be memory as well, so the rate leaves room. After the warm-up,
which is a third of the duration, the slope of the resident memory is fitted by least squares.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from infra.console.text import parse_duration_s
from infra.kafka.embedded import EmbeddedKafka
from tests.faults.logs import Progress
from tests.integration.pipeline import Pipeline, stop, workload_names

PERIOD_S = 0.5
LOOK_S = 5.0
MOST_MB_PER_HOUR = 1.0
MOST_BEHIND = 20


@dataclass(frozen=True, slots=True)
class Look:
    """The worker at one moment; `behind` are slots published and not committed by every stage."""

    at_s: float
    rss_mb: float
    files: int
    behind: int


def looked(pid: int, started: float, behind: int) -> Look:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    rss_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Look(monotonic() - started, rss_mb, len(list(Path(f"/proc/{pid}/fd").iterdir())), behind)


def slope_per_hour(looks: list[Look]) -> tuple[float, float]:
    """MB per hour and its standard error."""
    hours = np.array([look.at_s / 3_600 for look in looks])
    rss = np.array([look.rss_mb for look in looks])
    centred = hours - hours.mean()
    slope = float((centred * rss).sum() / (centred**2).sum())
    left = rss - rss.mean() - slope * centred
    error = float(np.sqrt((left**2).sum() / max(1, len(looks) - 2) / (centred**2).sum()))
    return slope, error


def _committed(progress: Progress) -> list[int]:
    """Newest slots of the last stage, by partition; empty until every partition has one."""
    slots = list(progress.slots(("decide",)).values())
    return [slot for slot in slots if slot is not None] if None not in slots else []


def verdict(looks: list[Look], seconds: float) -> tuple[list[str], bool]:
    """Lines of the report, and whether all is well."""
    calm = [look for look in looks if look.at_s > seconds / 3]
    if len(calm) < 3:
        lived_s = looks[-1].at_s if looks else 0.0
        return [f"the worker lived for {lived_s:.0f} s of {seconds:.0f}: too short to judge"], False
    slope, error = slope_per_hour(calm)
    worst, files = max(look.behind for look in calm), (calm[0].files, calm[-1].files)
    good = [slope - 2 * error < MOST_MB_PER_HOUR, worst <= MOST_BEHIND, files[1] <= files[0] + 2]
    memory = f"resident memory {calm[0].rss_mb:.1f} MB after the warm-up, {calm[-1].rss_mb:.1f} MB at the end: "
    lines = [
        memory + f"{slope:+.2f} ± {error:.2f} MB/h (limit {MOST_MB_PER_HOUR:g}): {'ok' if good[0] else 'GROWS'}",
        f"at most {worst} slots behind (limit {MOST_BEHIND}): {'ok' if good[1] else 'FALLS BEHIND'}",
        f"open files {files[0]}, then {files[1]}: {'ok' if good[2] else 'LEAKS'}",
    ]
    return lines, all(good)


def soak(seconds: float, seed: int, home: Path) -> tuple[list[Look], int, int]:
    """Looks, slots published, and the worker's exit code."""
    with EmbeddedKafka(home / "kafka", quiet=True) as kafka:
        pipeline = Pipeline(kafka.bootstrap, "soak.", home / "pipeline", workload_names(20), seed)
        progress = Progress(kafka.bootstrap, pipeline.topics)
        worker = pipeline.start_worker()
        first = pipeline.slot
        looks: list[Look] = []
        try:
            while not _committed(progress) and worker.poll() is None:
                # Imports and compiling are no part of what is looked at.
                pipeline.publish_slot()
                progress.poll(1_000)
            started, next_look = monotonic(), 0.0
            while monotonic() - started < seconds and worker.poll() is None:
                pipeline.publish_slot()
                progress.poll(0)
                at = monotonic() - started
                if at >= next_look:
                    behind = pipeline.slot - 1 - min(_committed(progress), default=first)
                    looks.append(looked(worker.pid, started, behind))
                    next_look = at + LOOK_S
                    print(f"{at:7.0f} s {looks[-1].rss_mb:8.1f} MB {behind:4d} behind", file=sys.stderr, flush=True)
                sleep(PERIOD_S)
            if worker.poll() is not None:
                print(pipeline.log_of()[-2_000:], file=sys.stderr)
        finally:
            code = stop(worker)
            progress.close()
            pipeline.producer.close(5)
        return looks, pipeline.slot - first, code


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.splitlines()[0])
    parser.add_argument("--duration", default="1h")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    seconds = parse_duration_s(chosen.duration)
    with tempfile.TemporaryDirectory() as home:
        looks, slots, code = soak(seconds, chosen.seed, Path(home))
    print(f"{chosen.duration}, seed {chosen.seed}: {slots} slots of 20 workloads, {len(looks)} looks, exit code {code}")
    lines, well = verdict(looks, seconds)
    print("\n".join(lines))
    print("passed" if well and code == 0 else "FAILED")
    return int(not (well and code == 0))


if __name__ == "__main__":
    sys.exit(main())
