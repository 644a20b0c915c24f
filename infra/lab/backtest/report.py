"""One page: what their scaler did, what HARMONY would have done, and how far to trust it."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.console.files import plain
from infra.console.plots import GREY, INK, PALETTE, pyplot, save
from infra.lab.backtest.history import BIN_S, History
from infra.lab.backtest.judge import Judged
from infra.lab.replay.records import paired_interval
from infra.lab.replay.simulation import Lived

PLOT, PAGE, TEXT = "backtest.png", "report.html", "report.md"
_CLOSE = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; None where it cannot be said."""

    who: str
    attainment: float | None
    worst_window: float | None
    gpu_hours: float
    mean_replicas: float
    switches_per_hour: float


def lines_of(history: History, judged: Judged) -> list[Line]:
    """Measured, their replicas on the simulated engine, and HARMONY on it."""
    first, last = (round(s / BIN_S) for s in judged.score)
    replicas = history.replicas[first:last]
    hours = (last - first) * BIN_S / 3600
    gpus = judged.terms.profile.gpus_per_replica
    measured = Line(
        "your scaler, as measured",
        _part(history, first, last).attainment,
        None,
        float(replicas.sum()) * BIN_S / 3600 * gpus,
        float(replicas.mean()),
        float((replicas[1:] != replicas[:-1]).sum()) / hours,
    )
    return [measured, _mean("your replicas, simulated", judged.recorded), _mean("HARMONY, simulated", judged.harmony)]


def _part(history: History, first: int, last: int) -> History:
    return History(
        history.workload, history.start_ms + first * BIN_S * 1000, history.rate_rps[first:last],
        history.prompt_tokens[first:last], history.output_tokens[first:last], history.replicas[first:last],
        history.good_ratio[first:last], history.tpot_s, history.completions_only,
    )  # fmt: skip


def _mean(who: str, lives: Sequence[Lived]) -> Line:
    def of(value: Callable[[Lived], float]) -> float:
        return sum(map(value, lives)) / len(lives)

    worst = min(life.worst_window_attainment for life in lives)
    return Line(
        who, of(lambda x: x.attainment), None if math.isnan(worst) else worst, of(lambda x: x.gpu_hours),
        of(lambda x: x.mean_replicas), of(lambda x: x.switches_per_hour),
    )  # fmt: skip


def caveats(history: History, filled: History, judged: Judged, lines: Sequence[Line]) -> list[str]:
    """What stands between these figures and the truth, in whole sentences."""
    found = [
        f"Requests are drawn from the recorded rate of each minute (draws: {len(judged.harmony)}) and served by a "
        f"simulated engine ({judged.terms.profile.name}"
        + (
            f", its times multiplied by {judged.speed:.2f} to take as long per token as measured"
            if judged.speed
            else ""
        )
        + "): compare the two simulated lines with each other, not with the measured one."
    ]
    if judged.speed is None:
        found.append("The engine was not fitted to yours: give --engine a profile of your own, or record token times.")
    measured, simulated = lines[0].attainment, lines[1].attainment
    if measured is None or simulated is None:
        found.append("How many requests were good was not recorded, so the engine cannot be checked against it.")
    else:
        found.append(
            f"Measured good requests ({measured:.2%}) are those with their first token in time; on this engine your "
            f"replicas keep {simulated:.2%}, time per token included"
            + (f": it is {'slower' if simulated < measured else 'faster'} than yours, so take the difference with care."
               if abs(measured - simulated) > _CLOSE else ".")
        )  # fmt: skip
    if history.completions_only:
        found.append("Arrivals were not counted, only completions: what waited in a queue looks like less load.")
    if history.missing_ratio > 0:
        found.append(f"{history.missing_ratio:.1%} of the minutes were not recorded and are bridged.")
    if float(filled.replicas.max()) >= judged.terms.max_replicas:
        found.append("Your replicas reach --max-replicas: HARMONY could not go beyond what you had.")
    return found


def verdict(judged: Judged, lines: Sequence[Line]) -> str:
    """One sentence."""
    theirs, ours = lines[1], lines[2]
    assert theirs.attainment is not None
    assert ours.attainment is not None
    saved = 1 - ours.gpu_hours / theirs.gpu_hours if theirs.gpu_hours > 0 else 0.0
    kept = "keeps" if ours.attainment >= judged.terms.share else "misses"
    return (
        f"HARMONY {kept} the objective of {judged.terms.share:.1%} with {ours.attainment:.2%} good requests against "
        f"{theirs.attainment:.2%}, on {abs(saved):.0%} {'fewer' if saved >= 0 else 'more'} GPU-hours."
    )


def write_report(folder: Path, history: History, filled: History, judged: Judged, drawn: Path | None) -> dict[str, Any]:
    """Write page, text and data; returns the data.

    Raises:
        HarmonyError: the folder cannot be written.
    """
    lines = lines_of(filled, judged)
    said, notes = verdict(judged, lines), caveats(history, filled, judged, lines)
    data = plain(_data(history, judged, lines, said, notes))
    try:
        (folder / TEXT).write_text(_markdown(history, judged, lines, said, notes, drawn), encoding="utf-8")
        (folder / PAGE).write_text(_html(history, judged, lines, said, notes, drawn), encoding="utf-8")
    except OSError as error:
        raise HarmonyError(f"--out: cannot write {error.filename} ({error.strerror}).") from None
    return dict(data)


def _data(history: History, judged: Judged, lines: Sequence[Line], said: str, notes: Sequence[str]) -> dict[str, Any]:
    pairs = [
        [getattr(life, name) for life in lives]
        for name in ("attainment", "gpu_hours")
        for lives in (judged.harmony, judged.recorded)
    ]
    several = len(judged.harmony) > 1
    return {
        "workload": history.workload,
        "start": _day(history.start_ms),
        "hours": history.hours,
        "scored_hours": (judged.score[1] - judged.score[0]) / 3600,
        "missing_ratio": history.missing_ratio,
        "objective": {
            "ttft_s": judged.terms.objective.ttft_s,
            "tpot_s": judged.terms.objective.tpot_s,
            "share": judged.terms.share,
        },
        "lead_time_s": judged.terms.lead_s,
        "engine": {"profile": judged.terms.profile.name, "speed": judged.speed, "capacity_rps": judged.capacity_rps},
        "lines": [{name: getattr(line, name) for name in Line.__dataclass_fields__} for line in lines],
        "harmony_minus_recorded": {
            "attainment": paired_interval(pairs[0], pairs[1]) if several else None,
            "gpu_hours": paired_interval(pairs[2], pairs[3]) if several else None,
        },
        "verdict": said,
        "caveats": list(notes),
    }


def _day(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


_HEADINGS = ("", "good requests", "worst window", "GPU-hours", "mean replicas", "switches/h")


def _cells(line: Line) -> tuple[str, ...]:
    def share(value: float | None) -> str:
        return "not recorded" if value is None else f"{value:.2%}"

    worst = "" if line.worst_window is None else f"{line.worst_window:.2%}"
    figures = f"{line.gpu_hours:.1f}", f"{line.mean_replicas:.2f}", f"{line.switches_per_hour:.1f}"
    return (line.who, share(line.attainment), worst, *figures)


def _terms(history: History, judged: Judged) -> str:
    t = judged.terms
    return (
        f"{history.workload}, {history.hours:.1f} hours from {_day(history.start_ms)}; objective: {t.share:.1%} of "
        f"the requests with their first token within {t.objective.ttft_s:g} s and {t.objective.tpot_s:g} s per further "
        f"token; lead time {t.lead_s:g} s; {t.min_replicas} to {t.max_replicas} replicas of "
        f"{t.profile.gpus_per_replica} GPUs; one replica of {t.profile.name} carries {judged.capacity_rps:.2f} "
        f"requests/s; HARMONY with ε = {t.policy.epsilon:g}, untuned, scored once its context was full."
    )


def _markdown(
    history: History, judged: Judged, lines: Sequence[Line], said: str, notes: Sequence[str], drawn: Path | None
) -> str:
    table = [_HEADINGS, ("---", *["---:"] * 5), *(_cells(line) for line in lines)]
    rows = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    picture = f"![Load, replicas and good requests]({drawn.name})\n\n" if drawn else ""
    listed = "\n".join(f"* {note}" for note in notes)
    return (
        f"# What would HARMONY have done?\n\n{said}\n\n{rows}\n\n{picture}{_terms(history, judged)}\n\n"
        f"## How far to trust it\n\n{listed}\n"
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#22303c;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #d5dbe1;text-align:right}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}tr:last-child{font-weight:600}"
    ".said{font-size:1.15rem}"
)


def _html(
    history: History, judged: Judged, lines: Sequence[Line], said: str, notes: Sequence[str], drawn: Path | None
) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    picture = ""
    if drawn is not None:
        encoded = base64.b64encode(drawn.read_bytes()).decode()
        picture = f'<p><img alt="Load, replicas and good requests over time" src="data:image/png;base64,{encoded}"></p>'
    body = "\n".join(row(_cells(line), "td") for line in lines)
    listed = "\n".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>HARMONY backtest of '
        f"{html.escape(history.workload)}</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>What would HARMONY have done?</h1>\n<p class="said">{html.escape(said)}</p>\n'
        f"<table>{row(_HEADINGS, 'th')}\n{body}</table>\n{picture}\n<p>{html.escape(_terms(history, judged))}</p>\n"
        f"<h2>How far to trust it</h2>\n<ul>{listed}</ul>\n</body></html>\n"
    )


# The picture of a backtest: load, replicas of both, good requests by the hour.


_OURS, _THEIRS = PALETTE[0], PALETTE[1]


def draw(where: Path, history: History, judged: Judged) -> Path:
    """Draw the first seed's lives.

    Raises:
        HarmonyError: matplotlib is missing, or the file cannot be written.
    """
    plt = pyplot(where)
    figure, axes = plt.subplots(3, 1, figsize=(9.0, 6.6), sharex=True, height_ratios=(1.0, 1.4, 1.0))
    hours = np.arange(len(history.rate_rps)) * BIN_S / 3600
    axes[0].fill_between(hours, 0, history.rate_rps, color=GREY, alpha=0.45, lw=0)
    axes[0].set_title(f"{history.workload}: requests/s")
    axes[1].step(hours, history.replicas, where="post", color=_THEIRS, lw=1.3, label="your scaler")
    axes[1].step(hours, held(judged.harmony[0], hours * 3600), where="post", color=_OURS, lw=1.3, label="HARMONY")
    axes[1].set_title("replicas, ready")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(ncols=2, loc="upper left")
    for windows, color in zip(judged.good, (_THEIRS, _OURS), strict=True):
        axes[2].plot((windows.starts_s + windows.window_s / 2) / 3600, windows.good, color=color, lw=1.3)
    axes[2].axhline(judged.terms.share, color=INK, lw=0.8, ls=":")
    axes[2].set_title(f"good requests, per {judged.good[0].window_s / 60:.0f} min; dotted: the objective")
    axes[2].set_xlabel("hours")
    for axis in axes:
        axis.axvspan(0, judged.score[0] / 3600, color=GREY, alpha=0.12, lw=0)
    figure.tight_layout()
    saved: Path = save(figure, where)
    plt.close(figure)
    return saved


def held(life: Lived, at_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ready replicas at these instants."""
    count = np.zeros(len(at_s), dtype=np.int64)
    for replica in life.replicas:
        if not math.isnan(replica.ready_s):
            end_s = min(x for x in (replica.drain_s, replica.release_s, math.inf) if not math.isnan(x))
            count += (at_s >= replica.ready_s) & (at_s < end_s)
    return count
