"""The fleet table of the live view: one row per workload, fewer columns the narrower the terminal.

Colours are of the Okabe-Ito palette and never say anything that a sign beside them does not say too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from infra.console.text import printable
from infra.live_state import LiveRow

BLUE = "#56B4E9"
ORANGE = "#E69F00"

_ACTION_SIGNS = {
    "up": ("▲", "+", BLUE),
    "down": ("▼", "-", BLUE),
    "hold": ("=", "=", "dim"),
    "retired": ("×", "x", "dim"),
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column. `cells` is its width, None = what the others leave; `from_width` the terminal width that shows it."""

    heading: str
    cell: Callable[[LiveRow], Text]
    cells: int | None
    right: bool = False
    from_width: int = 0


def fleet_table(rows: Sequence[LiveRow], *, width: int, max_rows: int | None = None, unicode: bool = True) -> Table:
    """Table of the workloads, in the given order; when they do not fit, those below their objective stay."""
    shown, hidden = _fitting(rows, max_rows)
    columns = [column for column in _columns(rows, width, unicode) if width >= column.from_width]
    table = Table(
        box=box.SIMPLE_HEAD if unicode else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if unicode else 2, 0, 0),
    )
    taken = sum(column.cells + 2 for column in columns if column.cells is not None)
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis" if unicode else "crop",
            width=column.cells,
            max_width=max(6, width - taken) if column.cells is None else None,
        )
    for row in shown:
        table.add_row(*(column.cell(row) for column in columns))
    words = f"{'…' if unicode else '...'} {hidden} more" if hidden else "" if rows else "none yet"
    if words:
        table.add_row(Text(words, style="dim"), *(Text() for _ in columns[1:]))
    return table


def sparkline(values: Sequence[float | None], cells: int, unicode: bool = True) -> str:
    """The series as bars from 0 to its largest value; a cell shows the largest of its values, blank where unknown.

    >>> sparkline([0, 1, 2, None, 4], 5, unicode=False)
    '_:= #'
    """
    signs = "▁▂▃▄▅▆▇█" if unicode else "_.:-=+*#"
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known or cells <= 0:
        return " " * max(0, cells)
    top = max(*known, 1e-12)
    count = min(cells, len(values))
    text = ""
    for i in range(count):
        bucket = values[i * len(values) // count : (i + 1) * len(values) // count]
        here = [v for v in bucket if v is not None and math.isfinite(v)]
        text += signs[min(len(signs) - 1, int(max(0.0, *here) / top * len(signs)))] if here else " "
    return text.rjust(cells)


def amount(value: float | None) -> str:
    """A rate in at most five characters.

    >>> [amount(v) for v in (None, 0.034, 7.25, 184.2, 12_400, 3_100_000)]
    ['-', '0.03', '7.2', '184', '12.4k', '3.1M']
    """
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if size < 1:
        return f"{value:.2f}" if value else "0"
    if size < 99.95:
        return f"{value:.1f}"
    if size < 9_999.5:
        return f"{value:.0f}"
    if size < 999_950:
        return f"{value / 1e3:.1f}k"
    return f"{value / 1e6:.1f}M"


def _columns(rows: Sequence[LiveRow], width: int, unicode: bool) -> list[_Column]:
    low, high = rows[0].band_levels if rows else (0.1, 0.9)
    dash = "–" if unicode else "-"
    bars = 8 if width < 84 else 14 if width < 110 else 24
    names = 14 if width < 84 else 24 if width < 110 else 30
    longest = max((len(printable(row.workload)) for row in rows), default=0)
    return [
        _Column(
            "workload", lambda r: Text(_name(r.workload, names, unicode), style="bold"), max(10, min(names, longest))
        ),
        _Column("load", lambda r: Text(sparkline(r.load_rps, bars, unicode), style=BLUE), bars, from_width=50),
        _Column("req/s", lambda r: Text(amount(r.load_rps[-1] if r.load_rps else None)), 5, right=True),
        _Column(f"peak p{100 * low:g}{dash}p{100 * high:g}", lambda r: _band(r, dash), 12, right=True, from_width=84),
        _Column("each", lambda r: Text(amount(r.capacity_rps), style="dim"), 5, right=True, from_width=110),
        _Column("replicas", lambda r: _replicas(r, unicode), 8),
        _Column("in SLO", _attainment, 7, right=True),
        _Column("last", lambda r: _decision(r, unicode), None, from_width=42),
    ]


def _name(workload: str, cells: int, unicode: bool) -> str:
    # Ids are paths: their end tells workloads apart.
    text = printable(workload)
    cut = "…" if unicode else "~"
    return text if len(text) <= cells else cut + text[len(text) - cells + 1 :]


def _fitting(rows: Sequence[LiveRow], max_rows: int | None) -> tuple[list[LiveRow], int]:
    if max_rows is None or len(rows) <= max_rows:
        return list(rows), 0
    room = max(1, max_rows - 1)
    by_need = sorted(range(len(rows)), key=lambda i: (not _misses(rows[i]), i))
    return [rows[i] for i in sorted(by_need[:room])], len(rows) - room


def _misses(row: LiveRow) -> bool:
    return row.attainment is not None and row.attainment < row.objective


def _band(row: LiveRow, dash: str) -> Text:
    if row.band_rps is None:
        return Text("-", style="dim")
    return Text(f"{amount(row.band_rps[0])}{dash}{amount(row.band_rps[1])}")


def _replicas(row: LiveRow, unicode: bool) -> Text:
    ready, wanted, pending = row.replicas_ready, row.replicas_wanted, row.replicas_pending
    text = Text("-" if ready is None else str(ready))
    if wanted is not None and wanted != ready:
        text.append(f"{'→' if unicode else '>'}{wanted}", style=f"bold {BLUE}")
    if pending:
        text.append(f" +{pending}", style="dim")
    return text


def _attainment(row: LiveRow) -> Text:
    if row.attainment is None or not math.isfinite(row.attainment):
        return Text("-", style="dim")
    # Cut, not rounded: 99.97 % is not all, and 98.96 % is not 99 %.
    tenths = math.floor(row.attainment * 1000 + 1e-9)
    percent = "100%" if tenths >= 1000 else f"{tenths / 10:.1f}%"
    return Text(f"!{percent}", style=f"bold {ORANGE}") if _misses(row) else Text(percent)


def _decision(row: LiveRow, unicode: bool) -> Text:
    if not row.action:
        return Text("-", style="dim")
    fancy, plain, style = _ACTION_SIGNS.get(row.action, ("?", "?", ORANGE))
    text = Text().append(f"{fancy if unicode else plain} ", style=style)
    text.append(printable(row.reason.replace("_", " ")), style="none" if row.action in ("up", "down") else "dim")
    return text
