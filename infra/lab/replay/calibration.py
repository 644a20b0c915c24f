"""Calibration of the stated risk: P(miss) of each decision against what then happened.

A decision at an origin states the chance that fewer than the objective's share of the requests arriving in
[origin + lead time, + commit time) are good. Decisions follow each other faster than windows end, so intervals are
bootstrapped by blocks of time (Kuensch, "The Jackknife and the Bootstrap for General Stationary Observations", 1989).

`python -m infra.lab.replay.calibration FILE RESULTS.json ...` draws the diagram of several replays. Load and policy
name each curve.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.records import Decision
from infra.console.errors import HarmonyError
from infra.lab.plots import ReliabilityCurve, draw_reliability
from infra.simulator.ledger import Objective, Request

EDGES = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BLOCK_S = 600.0
_FEWEST = 5  # requests in a window, below which it says nothing


@dataclass(frozen=True, slots=True)
class StatedRisk:
    """One decision's stated risk and whether its window was missed. `at_s` is the origin."""

    at_s: float
    p_miss: float
    missed: bool


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Decisions whose stated risk lies in `[low, high)`.

    Attributes:
        stated: mean of what they state.
        realized: share of their windows that were missed; `interval` is its 95 % block-bootstrap interval.
    """

    low: float
    high: float
    count: int
    stated: float
    realized: float
    interval: tuple[float, float]


def stated_risks(
    decisions: Sequence[Decision],
    requests: Sequence[Request],
    objective: Objective,
    share: float,
    span_s: tuple[float, float],
    start_ts_ms: int,
    commit_s: float,
) -> list[StatedRisk]:
    """Every decision of the span with a stated risk at the count it set, and a window that ends within it."""
    arrival_s = np.asarray([r.arrival_s for r in requests])
    good = np.concatenate(([0], np.cumsum([objective.met(r) for r in requests])))
    risks = []
    for d in decisions:
        p_miss = d.risk.p_miss.get(str(d.replicas.final))
        if p_miss is None or d.lead_time_s is None:
            continue
        at_s = (d.origin_ts_ms - start_ts_ms) / 1000
        begin_s = at_s + d.lead_time_s.values[d.lead_time_s.levels.index(0.5)]
        if at_s < span_s[0] or begin_s + commit_s > span_s[1]:
            continue
        first, last = np.searchsorted(arrival_s, (begin_s, begin_s + commit_s))
        if last - first >= _FEWEST:
            risks.append(StatedRisk(at_s, p_miss, bool(good[last] - good[first] < share * (last - first))))
    return risks


def reliability(stated: Sequence[StatedRisk]) -> list[ReliabilityBin]:
    """Realized against stated by bins of the stated risk; empty bins are left out."""
    bins = []
    for low, high in zip(EDGES, (*EDGES[1:-1], math.nextafter(1.0, 2.0)), strict=False):
        inside = [s for s in stated if low <= s.p_miss < high]
        pooled = pooled_interval(inside)
        if pooled is not None:
            mean = float(np.mean([s.p_miss for s in inside]))
            bins.append(ReliabilityBin(low, min(high, 1.0), len(inside), mean, pooled[0], pooled[1:]))
    return bins


def pooled_interval(
    stated: Sequence[StatedRisk], seed: int = 0, draws: int = 1_000
) -> tuple[float, float, float] | None:
    """Realized share of missed windows with its 95 % block-bootstrap interval; None without decisions."""
    if not stated:
        return None
    blocks: dict[int, list[bool]] = {}
    for s in stated:
        blocks.setdefault(int(s.at_s // BLOCK_S), []).append(s.missed)
    counts = np.asarray([(sum(b), len(b)) for b in blocks.values()], dtype=np.float64)
    rng = np.random.default_rng(seed)
    chosen: NDArray[np.float64] = counts[rng.integers(0, len(counts), (draws, len(counts)))].sum(axis=1)
    low, high = np.quantile(chosen[:, 0] / chosen[:, 1], (0.025, 0.975))
    return float(counts[:, 0].sum() / counts[:, 1].sum()), float(low), float(high)


def draw_diagram(where: Path, curves: Mapping[str, Sequence[ReliabilityBin]], title: str) -> Path:
    """Draw the reliability diagram, one curve per name.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    columns = {
        name: ReliabilityCurve(
            [b.stated for b in bins], [b.realized for b in bins], [b.interval for b in bins], [b.count for b in bins]
        )
        for name, bins in curves.items()
    }
    return draw_reliability(where, columns, title)


def curves_of(results: Sequence[Path]) -> dict[str, list[ReliabilityBin]]:
    """From what `harmony replay --json` wrote, named by load and lead time, and by policy where there are several.

    Raises:
        HarmonyError: a file that is none of these.
    """
    curves = {}
    for path in results:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            name = f"{body['trace'].rpartition('_')[2]}, {body['lead_time_s']['mean']:g} s"
            by_policy = body["calibration"]
            for policy, record in by_policy.items():
                curve = f"{name}, {policy}" if len(by_policy) > 1 else name
                curves[curve] = [ReliabilityBin(**(b | {"interval": tuple(b["interval"])})) for b in record["bins"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HarmonyError(f"{path}: not a result of `harmony replay --json` ({str(error)[:80]}).", 2) from None
    return curves


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        if len(arguments) < 2:
            raise HarmonyError("Give the file to draw to, then results of `harmony replay --json`.", 2)
        draw_diagram(Path(arguments[0]), curves_of([Path(a) for a in arguments[1:]]), "Is the stated risk right?")
    except HarmonyError as error:
        print(f"harmony: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
