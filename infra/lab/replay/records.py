"""What a replay leaves behind: a JSON object, a table, and logs from which every figure can be computed again."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from infra.lab.replay.simulation import Lived
from infra.replay.intervals import Window, windows_of


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
