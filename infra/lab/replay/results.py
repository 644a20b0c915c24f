"""Results of a replay: figures of runs and bounds, paired differences, the JSON document, the table and the logs.

Differences between two policies use common random numbers: both meet the same arrivals and lead times. Their intervals
are percentile bootstraps over paired seeds and over paired windows of time.

Sources: Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13; Law, "Simulation Modeling and
Analysis" (2015), chapter 11, for common random numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from infra.console.options import say
from infra.lab.replay.calibration import StatedRisk, pooled_interval, reliability
from infra.lab.replay.policies.catalogue import PolicyChoice
from infra.lab.replay.prepare import CellOptions
from infra.lab.replay.simulation import RunResult, window_s
from infra.lab.report import plain, print_table, spread
from infra.simulator.cluster import replica_seconds

# Windows of time, and differences between two policies.

Interval = tuple[float, float]


class Window(NamedTuple):
    """What one policy did in one window: requests that arrived, those of them that were good, and GPU-seconds held."""

    requests: int
    good: int
    gpu_s: float


class PairedDifference(NamedTuple):
    """95 % intervals of one policy less another: of the attainment, and of the GPU-hours in parts of the other's."""

    attainment: Interval
    gpu_hours_ratio: Interval


def windows_of(run: RunResult) -> tuple[Window, ...]:
    """Those of the scored interval: ten minutes in loads of about an hour, else an hour; the last may be shorter."""
    start_s, end_s = run.setting.load.score
    length_s = window_s(start_s, end_s)
    edges = [*np.arange(start_s, end_s - 1e-6, length_s).tolist(), end_s]
    objective = run.setting.objective
    scored = [request for request in run.requests if start_s <= request.arrival_s < end_s]
    place = np.searchsorted(edges, [request.arrival_s for request in scored], side="right") - 1
    num = len(edges) - 1
    requests = np.bincount(place, minlength=num)
    good = np.bincount(place, weights=[objective.met(request) for request in scored], minlength=num)
    gpus = run.setting.profile.gpus_per_replica
    replica_s = [replica_seconds(run.replicas, begin_s, until_s) for begin_s, until_s in pairwise(edges)]
    columns = zip(requests.tolist(), good.tolist(), replica_s, strict=True)
    return tuple(Window(count, round(good_count), gpus * seconds) for count, good_count, seconds in columns)


def paired_windows(
    left: Sequence[Sequence[Window]], right: Sequence[Sequence[Window]], seed: int = 0, draws: int = 2_000
) -> PairedDifference | None:
    """Intervals over windows of time, in each of them all runs of both policies; None with fewer than two.

    What misses, misses in landslides, so that requests are no independent draws; windows nearly are. One hour of
    several draws of a day is one window: what the day does in it they have in common.

    Args:
        left, right: per seed the windows of a run, of the same times.
    """
    runs = [(*first, *second) for first, second in zip(_sum_by_window(left), _sum_by_window(right), strict=True)]
    if len(runs) < 2:
        return None
    facts = np.asarray(runs, dtype=np.float64)
    rng = np.random.default_rng(seed)
    samples = facts[rng.integers(0, len(facts), (draws, len(facts)))].sum(axis=1)
    samples = samples[(samples[:, 0] > 0) & (samples[:, 3] > 0) & (samples[:, 5] > 0)]
    if not len(samples):
        return None
    attainment = samples[:, 1] / samples[:, 0] - samples[:, 4] / samples[:, 3]
    return PairedDifference(_central_interval(attainment), _central_interval(samples[:, 2] / samples[:, 5] - 1.0))


def _sum_by_window(runs: Sequence[Sequence[Window]]) -> list[tuple[float, ...]]:
    """Sums over runs, window by window."""
    return [tuple(map(sum, zip(*windows, strict=True))) for windows in zip(*runs, strict=True)]


def paired_interval(left: Sequence[float], right: Sequence[float], seed: int = 0, draws: int = 2_000) -> Interval:
    """95 % bootstrap interval of the mean difference of paired values (one pair per seed)."""
    gaps = np.asarray(left, dtype=np.float64) - np.asarray(right, dtype=np.float64)
    rng = np.random.default_rng(seed)
    return _central_interval(gaps[rng.integers(0, len(gaps), (draws, len(gaps)))].mean(axis=1))


def _central_interval(samples: np.ndarray) -> Interval:
    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


# Figures of runs and bounds.


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


def row_of(policy: str, params: str, run: RunResult, holds: dict[str, int], forecasts: dict[str, int]) -> Row:
    """The figures of a run."""
    return Row(
        policy,
        run.seed,
        params,
        run.attainment,
        run.worst_window_attainment,
        run.gpu_hours,
        run.mean_replicas,
        run.switches_per_hour,
        *run.ttft_s,
        *run.tpot_s,
        holds,
        forecasts,
        windows_of(run),
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """What one candidate did: means over seeds, and the GPU-hours of each seed."""

    choice: PolicyChoice
    attainment: float
    gpu_hours: float
    hours_by_seed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EqualAttainment:
    """A rival in hindsight: the cheapest candidate that keeps as much as HARMONY on the scored part itself.

    No operator can choose so: the scored part is not known beforehand. It takes luck of tuning out of a comparison.

    Attributes:
        wanted: mean attainment of HARMONY.
        attainment, gpu_hours: of the candidate; means over seeds.
        harmony_ratios: GPU-hours of HARMONY by those of the rival, seed by seed.
    """

    policy: str
    params: str
    wanted: float
    attainment: float
    gpu_hours: float
    harmony_ratios: tuple[float, ...]


def equal_attainment(trials: Sequence[Trial], harmony: Sequence[Row]) -> EqualAttainment | None:
    """The cheapest trial on the scored part with HARMONY's attainment or more; None where none has it.

    Args:
        trials: of one rival; a single seed stands for all where arrivals and lead times are the same.
        harmony: one row per seed.
    """
    wanted = sum(row.attainment for row in harmony) / len(harmony)
    enough = [trial for trial in trials if trial.attainment >= wanted]
    if not enough:
        return None
    best = min(enough, key=lambda trial: trial.gpu_hours)
    hours = best.hours_by_seed if len(best.hours_by_seed) == len(harmony) else (best.gpu_hours,) * len(harmony)
    ratios = tuple(row.gpu_hours / spent for row, spent in zip(harmony, hours, strict=True))
    return EqualAttainment(
        best.choice.policy, str(best.choice), wanted, best.attainment, best.gpu_hours, ratios
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bound:
    """An oracle's figures, of one seed."""

    attainment: float
    gpu_hours: float
    mean_replicas: float
    simulations: int


@dataclass(frozen=True, slots=True)
class CausalBounds:
    """Of one seed, for one to whom the load's surprises come without a word.

    Attributes:
        unready: holds nothing ready for them.
        ready: keeps the objective, and holds a share of `held_ready` more than `unready`; None: none was found.
    """

    unready: Bound
    ready: Bound | None
    held_ready: float | None


@dataclass(frozen=True, slots=True)
class CellResult:
    """Everything measured of a cell.

    Attributes:
        chosen, trials: of tuning, by policy.
        stated: risks that HARMONY stated and what came of them, over all seeds, by variant.
        oracle: lead-constrained, by seed; `free_oracle`: with free instant moves, of the first seed; `rate_bounds`: the
            best schedule for the rate alone, by seed, empty where it was not searched or the load has but one draw.
        surprises_s: seconds of what is scored at which something begins that nothing announces; `causal`: by seed, what
            is possible to who does not know; empty without.
        equal: rivals at HARMONY's attainment, in hindsight; None where no candidate reaches it.
    """

    name: str
    benchmark_rps: float
    rows: list[Row]
    chosen: dict[str, PolicyChoice]
    trials: dict[str, list[Trial]]
    oracle: dict[int, Bound]
    free_oracle: Bound | None
    rate_bounds: dict[int, Bound]
    surprises_s: tuple[float, ...]
    causal: dict[int, CausalBounds]
    stated: dict[str, list[StatedRisk]]
    equal: dict[str, EqualAttainment | None] = field(default_factory=dict)


# The JSON document and the table.

_BOUND_FIGURES: Final = ("attainment", "gpu_hours", "mean_replicas")


def as_json(result: CellResult, options: CellOptions) -> dict[str, Any]:
    """The results as other programs read them."""
    return plain(
        {
            "trace": result.name,
            "slo": {
                "ttft_s": options.objective.ttft_s,
                "tpot_s": options.objective.tpot_s,
                "objective": options.share,
            },
            "lead_time_s": {
                "mean": options.lead_s,
                "sigma_log": options.lead_sigma_log,
                **({} if options.mixed_starts is None else {"mixed_starts": asdict(options.mixed_starts)}),
            },
            "profile": options.profile.name,
            "benchmark_rps": result.benchmark_rps,
            "policies": [asdict(row) for row in result.rows],
            "oracle": {
                "lead_constrained": {str(seed): asdict(b) for seed, b in result.oracle.items()},
                "free_moves": None if result.free_oracle is None else asdict(result.free_oracle),
                "rate_known": {str(seed): asdict(b) for seed, b in result.rate_bounds.items()},
                "causal": {str(seed): asdict(b) for seed, b in result.causal.items()},
            },
            "surprises_s": result.surprises_s,
            "tuning": {
                p: [{"params": str(t.choice), "attainment": t.attainment, "gpu_hours": t.gpu_hours} for t in trials]
                for p, trials in result.trials.items()
            },
            "equal_attainment_in_hindsight": {
                policy: None if its is None else asdict(its) | {"harmony_ratio": spread(its.harmony_ratios)}
                for policy, its in result.equal.items()
            },
            "against_hpa": _difference_from(result.rows, "hpa"),
            "calibration": {
                p: {
                    "bins": [asdict(b) for b in reliability(risks)],
                    "stated": sum(s.p_miss for s in risks) / len(risks),
                    "realized_and_interval": pooled_interval(risks),
                }
                for p, risks in result.stated.items()
            },
        }
    )


def _difference_from(rows: Sequence[Row], peer: str) -> dict[str, Any] | None:
    """95 % intervals of HARMONY minus a peer, paired by seed and by window of time; None without one of both."""
    harmony = {r.seed: r for r in rows if r.policy == "harmony"}
    peers = {r.seed: r for r in rows if r.policy == peer}
    seeds = sorted(harmony.keys() & peers.keys())
    if not seeds:
        return None
    windows = paired_windows([harmony[s].windows for s in seeds], [peers[s].windows for s in seeds])
    by_seed = {
        name: paired_interval([getattr(harmony[s], name) for s in seeds], [getattr(peers[s], name) for s in seeds])
        for name in ("attainment", "gpu_hours")
        if len(seeds) > 1
    }
    return {**by_seed, "by_window": None if windows is None else windows._asdict()}


def mean_of(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def print_results(result: CellResult, share: float) -> None:
    """Print the policies, then the bounds.

    Args:
        share: the objective; a policy below it is marked with an exclamation mark.
    """
    bound = mean_of([b.gpu_hours for b in result.oracle.values()])
    rows = []
    for policy in dict.fromkeys(r.policy for r in result.rows):
        runs = [r for r in result.rows if r.policy == policy]
        n = len(runs)
        attained, hours = sum(r.attainment for r in runs) / n, sum(r.gpu_hours for r in runs) / n
        rows.append(
            (
                policy,
                f"{attained:.2%}" + ("" if attained >= share else " !"),
                f"{min(r.worst_window_attainment for r in runs):.2%}",
                f"{hours:.3f}",
                f"{hours / bound:.2f}" if bound else "",
                f"{sum(r.mean_replicas for r in runs) / n:.2f}",
                f"{sum(r.switches_per_hour for r in runs) / n:.1f}",
                runs[0].params,
            )
        )
    ready = [b.ready for b in result.causal.values()]
    bounds: dict[str, Sequence[Bound | None]] = {
        "oracle": [*result.oracle.values()][:1],
        "oracle, free moves": [] if result.free_oracle is None else [result.free_oracle],
        "oracle, rate known": list(result.rate_bounds.values()),
        "oracle, surprised": [b.unready for b in result.causal.values()],
        "oracle, surprised, ready": [] if None in ready else ready,
    }
    for name, figures in bounds.items():
        if figures:
            attained, hours, replicas = (mean_of([getattr(b, what) for b in figures]) or 0.0 for what in _BOUND_FIGURES)
            of_oracle = f"{hours / bound:.2f}" if bound else ""
            rows.append((name, f"{attained:.2%}", "", f"{hours:.3f}", of_oracle, f"{replicas:.2f}", "", ""))
    headings = "policy", "attainment", "worst window", "GPU-hours", "of oracle", "replicas", "switches/h", "tuned"
    print_table(headings, rows, title=result.name, left=("tuned",))
    if result.equal:
        print_equal(result.equal)
    harmony = [r for r in result.rows if r.policy == "harmony"]
    if harmony:
        say(
            f"holds of harmony by reason: {_shares(harmony, 'holds')}; "
            f"forecasts by source: {_shares(harmony, 'forecasts')}"
        )


def print_equal(equal: Mapping[str, EqualAttainment | None], title: str = "") -> None:
    """Print rivals at HARMONY's attainment, and how many times their GPU-hours HARMONY takes."""
    headings = "rival", "attainment", "GPU-hours", "HARMONY, times that", "settings"
    rows = [(policy, *equal_texts(its)) for policy, its in equal.items()]
    wanted = next((its.wanted for its in equal.values() if its is not None), None)
    at = "" if wanted is None else f" of {wanted:.2%}"
    print_table(headings, rows, title=f"{title}in hindsight, at HARMONY's attainment{at}:", left=("settings",))


def equal_texts(its: EqualAttainment | None) -> tuple[str, str, str, str]:
    """Attainment, GPU-hours, HARMONY's ratio with least and most over seeds, and settings."""
    if its is None:
        return "not reached", "", "", ""
    ratio = spread(its.harmony_ratios)
    several = f" ({ratio['min']:.2f}-{ratio['max']:.2f})" if len(its.harmony_ratios) > 1 else ""
    return f"{its.attainment:.2%}", f"{its.gpu_hours:.3f}", f"{ratio['median']:.2f}{several}", its.params


def _shares(rows: Sequence[Row], what: str) -> str:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in getattr(row, what).items():
            total[name] = total.get(name, 0) + count
    num_total = max(1, sum(total.values()))
    return (
        ", ".join(f"{name} {count / num_total:.0%}" for name, count in sorted(total.items(), key=lambda x: -x[1]))
        or "none"
    )


# Logs, from which every figure can be computed again.


def write_logs(directory: Path, policy: str, run: RunResult) -> None:
    """`requests.csv` and `replicas.csv` under `<directory>/<policy>-<seed>`; a time that never came is empty."""
    where = directory / f"{policy}-{run.seed}"
    where.mkdir(parents=True, exist_ok=True)
    with (where / "requests.csv").open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(
            ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "replica_id", "first_token_s", "finish_s"]
        )
        for r in run.requests:
            times = (_time(r.first_token_s), _time(r.finish_s))
            lines.writerow([r.request_id, repr(r.arrival_s), r.prompt_tokens, r.output_tokens, r.replica_id, *times])
    with (where / "replicas.csv").open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(["replica_id", "command_s", "ready_s", "drain_s", "release_s"])
        for p in run.replicas:
            life = (p.command_s, p.ready_s, p.drain_s, p.release_s)
            lines.writerow([p.replica_id, *(_time(t) for t in life)])


def _time(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
