"""What the suite counted, for the table at its end. Every row was compared with its oracles: its differences are 0."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median

import msgspec
import pytest


@dataclass(slots=True)
class Row:
    """One fault history.

    Attributes:
        kills: kill -9 by the test, those of fail points not counted.
        hits: of fail points, by what the workers said before they acted.
        recoveries_s: from each kill to the first decision record after it, process start included.
        repeats: records on the wire beyond the first of their identity; all were identical to it.
    """

    test: str
    seed: int
    kills: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    recoveries_s: list[float] = field(default_factory=list)
    telemetry: int = 0
    slots: int = 0
    decisions: int = 0
    compared: int = 0
    repeats: int = 0
    seconds: float = 0.0
    checked: bool = False


ROWS: list[Row] = []
_PROPERTY = "fault history"


def note(item: pytest.Item, row: Row) -> None:
    """Send the row to the process that writes the table, with the report of the test's end."""
    item.user_properties.append((_PROPERTY, msgspec.to_builtins(row)))


def take(report: pytest.TestReport) -> None:
    """Rows of a test that is over."""
    if report.when == "teardown":
        ROWS.extend(msgspec.convert(row, Row) for name, row in report.user_properties if name == _PROPERTY)


def table() -> list[str]:
    """Lines of the report; empty when no fault test ran."""
    if not ROWS:
        return []
    head = ("test", "seed", "kill -9", "fail points", "records", "slots", "decisions", "compared", "repeats", "diffs")
    lines = [_line(head, "recovery s (median, worst)", "took s")]
    for row in sorted(ROWS, key=lambda row: row.test):
        hits = sum(row.hits.values())
        cells = (
            row.test,
            row.seed,
            row.kills,
            hits,
            row.telemetry,
            row.slots,
            row.decisions,
            row.compared,
            row.repeats,
        )
        lines.append(_line((*cells, 0 if row.checked else "failed"), _recovery(row.recoveries_s), f"{row.seconds:.0f}"))
    whole = Row("all", ROWS[0].seed)
    hits: Counter[str] = Counter()
    for row in ROWS:
        for name in ("kills", "telemetry", "slots", "decisions", "compared", "repeats", "seconds"):
            setattr(whole, name, getattr(whole, name) + getattr(row, name))
        hits.update(row.hits)
        whole.recoveries_s += row.recoveries_s
    cells = ("all", "", whole.kills, hits.total(), whole.telemetry, whole.slots, whole.decisions)
    failed = sum(not row.checked for row in ROWS)
    verdict = f"{failed} failed" if failed else 0
    last = (*cells, whole.compared, whole.repeats, verdict)
    lines.append(_line(last, _recovery(whole.recoveries_s), f"{whole.seconds:.0f}"))
    if hits:
        lines.append("fail points acted on: " + ", ".join(f"{p} {n}" for p, n in sorted(hits.items())))
    return lines


def _line(cells: tuple[object, ...], recovery: str, took: str) -> str:
    first, *rest = cells
    width = max(len(row.test) for row in ROWS)
    return f"{first!s:<{width}}" + "".join(f"{cell!s:>12}" for cell in rest) + f"{recovery:>28}{took:>8}"


def _recovery(seconds: list[float]) -> str:
    return f"{median(seconds):.1f}, {max(seconds):.1f} (of {len(seconds)})" if seconds else "-"
