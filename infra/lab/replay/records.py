"""What a replay leaves behind: a JSON object, a table, and logs from which every figure can be computed again."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from infra.lab.replay.simulation import Lived, window_s
from infra.simulator.cluster import held_seconds

# How sure is a difference between two policies? Bootstrap intervals over paired seeds, and over paired windows.


Interval = tuple[float, float]


class Window(NamedTuple):
    """What one policy did in one window: requests that arrived, those of them that were good, and GPU-seconds held."""

    requests: int
    good: int
    gpu_s: float


class Difference(NamedTuple):
    """95 % intervals of one policy less another: of the attainment, and of the GPU-hours in parts of the other's."""

    attainment: Interval
    gpu_hours_ratio: Interval


def windows_of(lived: Lived) -> tuple[Window, ...]:
    """Those of the scored interval: ten minutes in loads of about an hour, else an hour; the last may be shorter."""
    start_s, end_s = lived.setting.load.score
    length_s = window_s(start_s, end_s)
    edges = [*np.arange(start_s, end_s - 1e-6, length_s).tolist(), end_s]
    objective = lived.setting.objective
    scored = [request for request in lived.requests if start_s <= request.arrival_s < end_s]
    place = np.searchsorted(edges, [request.arrival_s for request in scored], side="right") - 1
    num = len(edges) - 1
    requests = np.bincount(place, minlength=num)
    good = np.bincount(place, weights=[objective.met(request) for request in scored], minlength=num)
    gpus = lived.setting.profile.gpus_per_replica
    held_s = [held_seconds(lived.replicas, begin_s, until_s) for begin_s, until_s in pairwise(edges)]
    told = zip(requests.tolist(), good.tolist(), held_s, strict=True)
    return tuple(Window(count, round(kept), gpus * its_s) for count, kept, its_s in told)


def paired_windows(
    ours: Sequence[Sequence[Window]], theirs: Sequence[Sequence[Window]], seed: int = 0, draws: int = 2_000
) -> Difference | None:
    """Intervals over windows of time, in each of them all runs of both policies; None with fewer than two.

    What misses, misses in landslides, so that requests are no independent draws; windows nearly are. One hour of
    several draws of a day is one window: what the day does in it they have in common.

    Args:
        ours, theirs: per seed the windows of a run, of the same times.
    """
    runs = [(*mine, *its) for mine, its in zip(_by_time(ours), _by_time(theirs), strict=True)]
    if len(runs) < 2:
        return None
    facts = np.asarray(runs, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = facts[rng.integers(0, len(facts), (draws, len(facts)))].sum(axis=1)
    drawn = drawn[(drawn[:, 0] > 0) & (drawn[:, 3] > 0) & (drawn[:, 5] > 0)]
    if not len(drawn):
        return None
    attainment = drawn[:, 1] / drawn[:, 0] - drawn[:, 4] / drawn[:, 3]
    return Difference(_middle(attainment), _middle(drawn[:, 2] / drawn[:, 5] - 1.0))


def _by_time(runs: Sequence[Sequence[Window]]) -> list[tuple[float, ...]]:
    """Sums over runs, window by window."""
    return [tuple(map(sum, zip(*windows, strict=True))) for windows in zip(*runs, strict=True)]


def paired_interval(ours: Sequence[float], theirs: Sequence[float], seed: int = 0, draws: int = 2_000) -> Interval:
    """95 % bootstrap interval of the mean difference of paired values (one pair per seed)."""
    gaps = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    rng = np.random.default_rng(seed)
    return _middle(gaps[rng.integers(0, len(gaps), (draws, len(gaps)))].mean(axis=1))


def _middle(drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy and seed of one cell, without its requests.

    Attributes:
        params: what tuning chose.
        windows: of what is scored, one after the other.
    """

    policy: str
    seed: int
    params: str
    attainment: float
    worst_window_attainment: float
    gpu_hours: float
    mean_replicas: float
    switches_per_hour: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    holds: dict[str, int]
    forecasts: dict[str, int]
    windows: tuple[Window, ...] = ()


def row_of(policy: str, params: str, lived: Lived, holds: dict[str, int], forecasts: dict[str, int]) -> Row:
    """The figures of a run."""
    return Row(
        policy,
        lived.seed,
        params,
        lived.attainment,
        lived.worst_window_attainment,
        lived.gpu_hours,
        lived.mean_replicas,
        lived.switches_per_hour,
        *lived.ttft_s,
        *lived.tpot_s,
        holds,
        forecasts,
        windows_of(lived),
    )


def write_logs(directory: Path, policy: str, lived: Lived) -> None:
    """`requests.csv` and `replicas.csv` under `<directory>/<policy>-<seed>`; a time that never came is empty."""
    where = directory / f"{policy}-{lived.seed}"
    where.mkdir(parents=True, exist_ok=True)
    with (where / "requests.csv").open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(
            ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "replica_id", "first_token_s", "finish_s"]
        )
        for r in lived.requests:
            times = (_time(r.first_token_s), _time(r.finish_s))
            lines.writerow([r.request_id, repr(r.arrival_s), r.prompt_tokens, r.output_tokens, r.replica_id, *times])
    with (where / "replicas.csv").open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(["replica_id", "command_s", "ready_s", "drain_s", "release_s"])
        for p in lived.replicas:
            life = (p.command_s, p.ready_s, p.drain_s, p.release_s)
            lines.writerow([p.replica_id, *(_time(t) for t in life)])


def _time(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
