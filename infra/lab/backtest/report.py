"""Report of a backtest: the measured scaler beside HARMONY, a verdict, and the limits of the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.lab.backtest.comparison import Comparison
from infra.lab.backtest.history import BIN_S, RecordedHistory
from infra.lab.plots import draw_backtest
from infra.lab.replay.results import paired_interval
from infra.lab.replay.simulation import RunResult
from infra.lab.report import ReportPage, plain

PLOT, PAGE, TEXT = "backtest.png", "report.html", "report.md"
_MATCHING_ATTAINMENT_GAP = 0.02
"""The simulated engine counts as like the measured one up to this difference of the attainment."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; None where it cannot be said."""

    who: str
    attainment: float | None
    worst_window: float | None
    gpu_hours: float
    mean_replicas: float
    switches_per_hour: float


def lines_of(history: RecordedHistory, comparison: Comparison) -> list[Line]:
    """Measured, their replicas on the simulated engine, and HARMONY on it."""
    first, last = (round(s / BIN_S) for s in comparison.score)
    replicas = history.replicas[first:last]
    hours = (last - first) * BIN_S / 3600
    gpus = comparison.terms.profile.gpus_per_replica
    measured = Line(
        "your scaler, as measured",
        _part(history, first, last).attainment,
        None,
        float(replicas.sum()) * BIN_S / 3600 * gpus,
        float(replicas.mean()),
        float((replicas[1:] != replicas[:-1]).sum()) / hours,
    )
    return [
        measured,
        _mean("your replicas, simulated", comparison.recorded),
        _mean("HARMONY, simulated", comparison.harmony),
    ]


def _part(history: RecordedHistory, first: int, last: int) -> RecordedHistory:
    return RecordedHistory(
        history.workload, history.start_ms + first * BIN_S * 1000, history.rate_rps[first:last],
        history.prompt_tokens[first:last], history.output_tokens[first:last], history.replicas[first:last],
        history.good_ratio[first:last], history.tpot_s, history.completions_only,
    )  # fmt: skip


def _mean(who: str, runs: Sequence[RunResult]) -> Line:
    def of(value: Callable[[RunResult], float]) -> float:
        return sum(map(value, runs)) / len(runs)

    worst = min(run.worst_window_attainment for run in runs)
    return Line(
        who, of(lambda x: x.attainment), None if math.isnan(worst) else worst, of(lambda x: x.gpu_hours),
        of(lambda x: x.mean_replicas), of(lambda x: x.switches_per_hour),
    )  # fmt: skip


def caveats(
    history: RecordedHistory, filled: RecordedHistory, comparison: Comparison, lines: Sequence[Line]
) -> list[str]:
    """What stands between these figures and the truth, in whole sentences."""
    remarks = [
        f"Requests are drawn from the recorded rate of each minute (draws: {len(comparison.harmony)}) and served by a "
        f"simulated engine ({comparison.terms.profile.name}"
        + (
            f", its times multiplied by {comparison.speed:.2f} to take as long per token as measured"
            if comparison.speed
            else ""
        )
        + "): compare the two simulated lines with each other, not with the measured one."
    ]
    if comparison.speed is None:
        remarks.append(
            "The engine was not fitted to yours: give --engine a profile of your own, or record token times."
        )
    measured, simulated = lines[0].attainment, lines[1].attainment
    if measured is None or simulated is None:
        remarks.append("How many requests were good was not recorded, so the engine cannot be checked against it.")
    else:
        remarks.append(
            f"Measured good requests ({measured:.2%}) are those with their first token in time; on this engine your "
            f"replicas keep {simulated:.2%}, time per token included"
            + (f": it is {'slower' if simulated < measured else 'faster'} than yours, so take the difference with care."
               if abs(measured - simulated) > _MATCHING_ATTAINMENT_GAP else ".")
        )  # fmt: skip
    if history.completions_only:
        remarks.append("Arrivals were not counted, only completions: what waited in a queue looks like less load.")
    if history.missing_ratio > 0:
        remarks.append(f"{history.missing_ratio:.1%} of the minutes were not recorded and are bridged.")
    if float(filled.replicas.max()) >= comparison.terms.max_replicas:
        remarks.append("Your replicas reach --max-replicas: HARMONY could not go beyond what you had.")
    return remarks


def verdict(comparison: Comparison, lines: Sequence[Line]) -> str:
    """One sentence."""
    baseline, harmony = lines[1], lines[2]
    assert baseline.attainment is not None
    assert harmony.attainment is not None
    saved = 1 - harmony.gpu_hours / baseline.gpu_hours if baseline.gpu_hours > 0 else 0.0
    verb = "keeps" if harmony.attainment >= comparison.terms.share else "misses"
    return (
        f"HARMONY {verb} the objective of {comparison.terms.share:.1%} with {harmony.attainment:.2%} good requests "
        f"against {baseline.attainment:.2%}, on {abs(saved):.0%} {'fewer' if saved >= 0 else 'more'} GPU-hours."
    )


def write_report(
    folder: Path, history: RecordedHistory, filled: RecordedHistory, comparison: Comparison, picture: Path | None
) -> dict[str, Any]:
    """Write the report as a page and as text, and return its data.

    Raises:
        HarmonyError: the folder cannot be written.
    """
    lines = lines_of(filled, comparison)
    page = ReportPage(
        title=f"HARMONY backtest of {history.workload}",
        heading="What would HARMONY have done?",
        summary=verdict(comparison, lines),
        headings=_HEADINGS,
        rows=[_cells(line) for line in lines],
        picture=picture,
        picture_text="Load, replicas and good requests",
        terms=_terms(history, comparison),
        notes_heading="How far to trust it",
        notes=caveats(history, filled, comparison, lines),
    )
    page.write(folder / TEXT, folder / PAGE)
    return dict(plain(_data(history, comparison, lines, page)))


def _data(history: RecordedHistory, comparison: Comparison, lines: Sequence[Line], page: ReportPage) -> dict[str, Any]:
    pairs = [
        [getattr(run, name) for run in runs]
        for name in ("attainment", "gpu_hours")
        for runs in (comparison.harmony, comparison.recorded)
    ]
    several = len(comparison.harmony) > 1
    return {
        "workload": history.workload,
        "start": _day(history.start_ms),
        "hours": history.hours,
        "scored_hours": (comparison.score[1] - comparison.score[0]) / 3600,
        "missing_ratio": history.missing_ratio,
        "objective": {
            "ttft_s": comparison.terms.objective.ttft_s,
            "tpot_s": comparison.terms.objective.tpot_s,
            "share": comparison.terms.share,
        },
        "lead_time_s": comparison.terms.lead_s,
        "engine": {
            "profile": comparison.terms.profile.name,
            "speed": comparison.speed,
            "capacity_rps": comparison.capacity_rps,
        },
        "lines": [{name: getattr(line, name) for name in Line.__dataclass_fields__} for line in lines],
        "harmony_minus_recorded": {
            "attainment": paired_interval(pairs[0], pairs[1]) if several else None,
            "gpu_hours": paired_interval(pairs[2], pairs[3]) if several else None,
        },
        "verdict": page.summary,
        "caveats": list(page.notes),
    }


def _day(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


_HEADINGS = ("replicas of", "good requests", "worst window", "GPU-hours", "mean replicas", "switches/h")


def _cells(line: Line) -> tuple[str, ...]:
    def share(value: float | None) -> str:
        return "not recorded" if value is None else f"{value:.2%}"

    worst = "" if line.worst_window is None else f"{line.worst_window:.2%}"
    figures = f"{line.gpu_hours:.1f}", f"{line.mean_replicas:.2f}", f"{line.switches_per_hour:.1f}"
    return (line.who, share(line.attainment), worst, *figures)


def _terms(history: RecordedHistory, comparison: Comparison) -> str:
    t = comparison.terms
    gpus = f"{t.profile.gpus_per_replica} GPU" + ("" if t.profile.gpus_per_replica == 1 else "s")
    return (
        f"{history.workload}, {history.hours:.1f} hours from {_day(history.start_ms)}; objective: {t.share:.1%} of "
        f"the requests with their first token within {t.objective.ttft_s:g} s and {t.objective.tpot_s:g} s per further "
        f"token; lead time {t.lead_s:g} s; {t.min_replicas} to {t.max_replicas} replicas of "
        f"{gpus}; one replica of {t.profile.name} carries {comparison.capacity_rps:.2f} "
        f"requests/s; HARMONY with ε = {t.policy.epsilon:g}, untuned, scored once its context was full."
    )


def draw(where: Path, history: RecordedHistory, comparison: Comparison) -> Path:
    """Draw the runs of the first seed.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    at_s = np.arange(len(history.rate_rps), dtype=np.float64) * BIN_S
    replicas = {"your scaler": history.replicas, "HARMONY": ready_replicas(comparison.harmony[0], at_s)}
    return draw_backtest(
        where,
        history.workload,
        at_s,
        history.rate_rps,
        replicas,
        comparison.good,
        comparison.terms.share,
        comparison.score[0],
    )


def ready_replicas(run: RunResult, at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ready replicas at these instants."""
    count = np.zeros(len(at_s), dtype=np.int64)
    for replica in run.replicas:
        if not math.isnan(replica.ready_s):
            end_s = min(x for x in (replica.drain_s, replica.release_s, math.inf) if not math.isnan(x))
            count += (at_s >= replica.ready_s) & (at_s < end_s)
    return count
