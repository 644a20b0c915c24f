"""Tables of what `tests.bench.replay_cells` found: every policy on every load and lead time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from tests.bench.markdown import table
from tests.bench.replay_cells import UNTUNED
from tests.bench.stored import results

_OBJECTIVE: Final = 0.99
_NAMES: Final = {
    "harmony": "HARMONY",
    UNTUNED: "HARMONY as shipped, untuned",
    "seasonal-naive": "last minute (seasonal naive)",
    "scheduled": "scheduled",
    "optscaler": "OptScaler-like",
    "llmd-slo": "llm-d SLO rule",
    "dynamo": "Dynamo classic",
    "dynamo-dual": "Dynamo dual loop",
    "kpa": "Knative KPA",
    "keda-queue": "KEDA queue + KV",
    "hpa": "HPA",
    "static-peak": "static peak (told)",
}
_SHORT: Final = {
    "static-peak": "fixed fleet that was told the peak",
    UNTUNED: "HARMONY as shipped, untuned",
    "kpa": "Knative KPA, tuned",
    "hpa": "HPA, tuned",
    "dynamo-dual": "Dynamo dual loop, tuned",
}
_LOADS_IN_A_TABLE: Final = 2

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]


def _cells() -> Cells:
    found: Cells = results("replay_cells")["results"]
    return found


def _summary() -> str:
    cells = _cells()
    rows = []
    for policy, name in _NAMES.items():
        mine = [cell[policy] for cell in cells.values()]
        kept = sum(its["attainment"] >= _OBJECTIVE for its in mine)
        ratios = [its["ratio"] for its in mine]
        moves = median(its["switches_per_hour"] for its in mine)
        worst = min(its["attainment"] for its in mine)
        text = (name, str(kept), f"{median(ratios):.2f}", f"{max(ratios):.2f}", f"{100 * worst:.1f} %", f"{moves:.1f}")
        rows.append((-kept, median(ratios), text))
    headings = (
        "", f"cells of {len(cells)} that keep 99 %", "median of oracle", "most", "worst attainment", "moves/h",
    )  # fmt: skip
    return table(headings, [text for *_, text in sorted(rows, key=lambda row: row[:2])])


def _shortest() -> str:
    cells = _cells()
    rows = []
    for policy, name in _SHORT.items():
        mine = [cell[policy] for cell in cells.values()]
        kept, ratio = sum(its["attainment"] >= _OBJECTIVE for its in mine), median(its["ratio"] for its in mine)
        texts = (name, str(kept), f"{ratio:.2f}")
        rows.append(tuple(f"**{text}**" for text in texts) if policy == UNTUNED else texts)
    return table(
        (
            "six loads × three lead times, replayed",
            f"of {len(cells)} keep 99 %",
            "median GPU-hours, × the best schedule",
        ),
        rows,
    )


def _by_cell() -> str:
    cells = _cells()
    loads = list(dict.fromkeys(name.split(", ")[0] for name in cells))
    parts = []
    for first in range(0, len(loads), _LOADS_IN_A_TABLE):
        shown = [name for name in cells if name.split(", ")[0] in loads[first : first + _LOADS_IN_A_TABLE]]
        rows = [(name, *(_both(cells[cell][policy]) for cell in shown)) for policy, name in _NAMES.items()]
        parts.append(table(("", *(cell.replace(",", "") for cell in shown)), rows))
    return "\n".join(parts)


def _both(its: Mapping[str, Any]) -> str:
    lost = "" if its["attainment"] >= _OBJECTIVE else "!"
    return f"{100 * its['attainment']:.1f}{lost} / {its['ratio']:.2f}"


def _harmony() -> str:
    rows = []
    for name, cell in _cells().items():
        tuned, shipped = cell["harmony"], cell[UNTUNED]
        chosen = dict(part.split("=") for part in tuned["settings"].split())
        rows.append(
            (
                name,
                f"{chosen['epsilon']}, {chosen['bearable_ratio']}",
                f"{100 * tuned['attainment']:.2f} %",
                f"{100 * tuned['worst_window']:.1f} %",
                f"{tuned['mean_replicas']:.2f}",
                *_its_own(tuned),
                f"{100 * shipped['attainment']:.2f} %",
                *_its_own(shipped),
            )
        )
    own = ("of oracle", "moves/h", "stated", "realized")
    return table(
        ("cell", "tuned ε, ratio", "attainment", "worst window", "replicas", *own, "as shipped", *own), rows
    )  # fmt: skip


def _its_own(its: Mapping[str, Any]) -> Sequence[str]:
    missed, low, high = its["realized"]
    return (
        f"{its['ratio']:.2f}",
        f"{its['switches_per_hour']:.1f}",
        f"{100 * its['stated']:.1f} %",
        f"{100 * missed:.1f} % ({100 * low:.0f} to {100 * high:.0f})",
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "replay_short": _shortest,
    "replay_summary": _summary,
    "replay_by_cell": _by_cell,
    "replay_harmony": _harmony,
}
