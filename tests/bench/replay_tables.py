"""Tables of what `tests.bench.replay_cells` found: every policy on every load and lead time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from tests.bench.markdown import table
from tests.bench.replay_cells import OBJECTIVE, Scored, Standing, standings
from tests.bench.stored import Document, results

_NAMES: Final = {
    "harmony": "HARMONY as shipped",
    "seasonal-naive": "last minute (seasonal naive)",
    "scheduled": "scheduled",
    "optscaler": "OptScaler-like",
    "llmd-slo": "llm-d SLO rule",
    "dynamo": "Dynamo classic",
    "dynamo-dual": "Dynamo dual loop",
    "kpa": "Knative KPA",
    "keda-queue": "KEDA queue + KV",
    "hpa": "HPA",
    "static-peak": "static peak (known)",
}
_SHORT: Final = {
    "static-peak": "fixed fleet sized for the known peak",
    "harmony": "HARMONY as shipped",
    "kpa": "Knative KPA, tuned",
    "hpa": "HPA, tuned",
    "dynamo-dual": "Dynamo dual loop, tuned",
}
_LOADS_IN_A_TABLE: Final = 2


def _cells() -> dict[str, dict[str, Scored]]:
    return _scored(results("replay_cells")["results"])


def _scored(found: Document) -> dict[str, dict[str, Scored]]:
    return {name: {policy: Scored(**its) for policy, its in cell.items()} for name, cell in found.items()}


def standing(found: Document, policy: str) -> Standing:
    """The standing of one policy over all cells of a record's results."""
    return next(its for its in standings(_scored(found)) if its.policy == policy)


def _summary() -> str:
    found = standings(_cells())
    rows = [
        (
            _NAMES[its.policy],
            str(its.kept),
            f"{its.ratio:.2f}",
            f"{its.most:.2f}",
            f"{100 * its.worst:.1f} %",
            f"{its.switches_per_hour:.1f}",
        )
        for its in found
    ]
    headings = (
        "", f"cells of {found[0].cells} that keep 99 %", "median of oracle", "most", "worst attainment", "moves/h",
    )  # fmt: skip
    return table(headings, rows)


def _shortest() -> str:
    found = {its.policy: its for its in standings(_cells())}
    rows = []
    for policy, name in _SHORT.items():
        texts = (name, str(found[policy].kept), f"{found[policy].ratio:.2f}")
        rows.append(tuple(f"**{text}**" for text in texts) if policy == "harmony" else texts)
    headings = (
        "six loads × three lead times, replayed", f"of {found['harmony'].cells} keep 99 %",
        "median GPU-hours, × the best schedule",
    )  # fmt: skip
    return table(headings, rows)


def _by_cell() -> str:
    cells = _cells()
    loads = list(dict.fromkeys(name.split(", ")[0] for name in cells))
    parts = []
    for first in range(0, len(loads), _LOADS_IN_A_TABLE):
        shown = [name for name in cells if name.split(", ")[0] in loads[first : first + _LOADS_IN_A_TABLE]]
        rows = [(name, *(_both(cells[cell][policy]) for cell in shown)) for policy, name in _NAMES.items()]
        parts.append(table(("", *(cell.replace(",", "") for cell in shown)), rows))
    return "\n".join(parts)


def _both(its: Scored) -> str:
    return f"{100 * its.attainment:.1f}{'' if its.kept else '!'} / {its.ratio:.2f}"


def _harmony() -> str:
    rows = []
    for name, cell in _cells().items():
        its = cell["harmony"]
        rows.append(
            (
                name,
                f"{100 * its.attainment:.2f} %",
                f"{100 * its.worst_window:.1f} %",
                f"{its.mean_replicas:.2f}",
                *_its_own(its),
            )
        )
    headings = ("cell", "attainment", "worst window", "replicas", "of oracle", "moves/h", "stated", "realized")
    return table(headings, rows)


def _against_hpa() -> str:
    """Less the tuned HPA, in points of attainment and percent of GPU-hours: 95 % intervals over paired windows."""
    rows = []
    for name, cell in _cells().items():
        its = cell["harmony"]
        assert its.against_hpa is not None
        points, hours = _apart(its.against_hpa)
        rows.append((name, f"{points}{'!' if its.worse_than_hpa else ''}", hours))
    return table(("cell", "points more kept", "GPU-hours more"), rows)


def _draws() -> str:
    """HARMONY as shipped beside the tuned HPA, over several draws of each day."""
    rows = []
    for name, cell in results("replay_draws")["results"].items():
        its = [_spread(cell[policy]["attainment"]) for policy in ("harmony", "hpa")]
        rows.append((name, *its, *_apart(cell["against_hpa"])))
    return table(("cell", "HARMONY as shipped", "HPA, tuned", "points more kept", "GPU-hours more"), rows)


def _apart(intervals: Sequence[float]) -> tuple[str, str]:
    """Of points of attainment, and of percent of GPU-hours."""
    missed, kept, cheaper, dearer = (100 * its for its in intervals)
    return f"{missed:+.1f} to {kept:+.1f}", f"{cheaper:+.0f} to {dearer:+.0f} %"


def _spread(attained: Sequence[float]) -> str:
    kept = sum(its >= OBJECTIVE for its in attained)
    least, most = 100 * min(attained), 100 * max(attained)
    return f"{100 * fmean(attained):.2f} % ({least:.1f}–{most:.1f}), {kept} of {len(attained)}"


def _its_own(its: Scored) -> Sequence[str]:
    assert its.stated is not None
    assert its.realized is not None
    missed, low, high = its.realized
    return (
        f"{its.ratio:.2f}",
        f"{its.switches_per_hour:.1f}",
        f"{100 * its.stated:.1f} %",
        f"{100 * missed:.1f} % ({100 * low:.0f} to {100 * high:.0f})",
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "replay_short": _shortest,
    "replay_summary": _summary,
    "replay_by_cell": _by_cell,
    "replay_harmony": _harmony,
    "replay_against_hpa": _against_hpa,
    "replay_draws": _draws,
}
