"""The live view of `harmony run`: what the fleet asks for, what is forecast, what was decided, in one small table.

On a terminal it is redrawn in place; elsewhere one plain line is written every few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infra.console.text import printable
from infra.page.live import PolicyLine

# Rows of the live view: plain values that any runner can fill.


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One workload; None means not known (yet).

    Attributes:
        load_rps: arrival rate per slot, 1/s, oldest first; None where not observed.
        band_rps: low and high quantile of the peak demand over the lead time, 1/s.
        band_levels: the two quantile levels.
        capacity_rps: requests/s that one replica carries within the SLO.
        attainment: share of requests within the SLO so far.
        action: up, down, hold, retired; empty before the first decision.
    """

    workload: str
    load_rps: tuple[float | None, ...] = ()
    band_rps: tuple[float, float] | None = None
    band_levels: tuple[float, float] = (0.1, 0.9)
    replicas_ready: int | None = None
    replicas_pending: int | None = None
    replicas_wanted: int | None = None
    capacity_rps: float | None = None
    attainment: float | None = None
    objective: float = 0.99
    action: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LiveState:
    """Everything the view shows.

    Attributes:
        sim_ts_ms: simulated event time.
        speed: simulated seconds per second; 0 = as fast as possible.
        lag_records: records not read yet, all stages.
        harmony: this run's own cost and attainment.
        shadows: other policies on the same load.
        note: a sentence on what is being waited for; empty when all is well.
    """

    rows: tuple[LiveRow, ...] = ()
    sim_ts_ms: int | None = None
    speed: float | None = None
    slots: int = 0
    forecasts: int = 0
    forecasts_per_s: float | None = None
    lag_records: int | None = None
    harmony: PolicyLine = field(default_factory=lambda: PolicyLine("harmony"))
    shadows: tuple[PolicyLine, ...] = ()
    note: str = ""


# The fleet table of the live view: one row per workload, fewer columns the narrower the terminal.
#
# Colours are of the Okabe-Ito palette. A sign beside each colour carries the same information.


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
    visible_rows, hidden = _fitting(rows, max_rows)
    columns = [column for column in _columns(rows, width, unicode) if width >= column.from_width]
    table = Table(
        box=box.SIMPLE_HEAD if unicode else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1 if unicode else 2, 0, 0),
    )
    fixed_cells = sum(column.cells + 2 for column in columns if column.cells is not None)
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis" if unicode else "crop",
            width=column.cells,
            max_width=max(6, width - fixed_cells) if column.cells is None else None,
        )
    for row in visible_rows:
        table.add_row(*(column.cell(row) for column in columns))
    footer = f"{'…' if unicode else '...'} {hidden} more" if hidden else "" if rows else "none yet"
    if footer:
        table.add_row(Text(footer, style="dim"), *(Text() for _ in columns[1:]))
    return table


def sparkline(values: Sequence[float | None], cells: int, unicode: bool = True) -> str:
    """The series as bars from 0 to its largest value; a cell shows the largest of its values, blank where unknown.

    >>> sparkline([0, 1, 2, None, 4], 5, unicode=False)
    '_:= #'
    """
    signs = "▁▂▃▄▅▆▇█" if unicode else "_.:-=+*#"
    finite_values = [v for v in values if v is not None and math.isfinite(v)]
    if not finite_values or cells <= 0:
        return " " * max(0, cells)
    top = max(*finite_values, 1e-12)
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
    ready, desired, pending = row.replicas_ready, row.replicas_wanted, row.replicas_pending
    text = Text("-" if ready is None else str(ready))
    if desired is not None and desired != ready:
        text.append(f"{'→' if unicode else '>'}{desired}", style=f"bold {BLUE}")
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


def render(state: LiveState, *, width: int, height: int | None = None, unicode: bool = True) -> Group:
    """The view as something rich can draw: header, table, footer; rows that do not fit in `height` are counted."""
    parts = [_header(state, width, unicode)]
    if state.note:
        parts.append(Text(printable(state.note), style="bold #E69F00"))
    parts.append(Text())
    footer = _footer(state, width, unicode)
    free_lines = None if height is None else max(1, height - len(parts) - 4 - footer.plain.count("\n"))
    table = fleet_table(state.rows, width=width, max_rows=free_lines, unicode=unicode)
    return Group(*parts, table, Text(), footer)


def plain_line(state: LiveState) -> str:
    """The whole state in one line, for logs and pipes."""
    parts = [time_of(state.sim_ts_ms)]
    if state.speed is not None:
        parts.append(f"speed {state.speed:g}x" if state.speed else "full speed")
    parts.append(f"slots {state.slots}")
    rate = f" ({state.forecasts_per_s:.0f}/s)" if state.forecasts_per_s is not None else ""
    parts.append(f"forecasts {state.forecasts}{rate}")
    if state.lag_records is not None:
        parts.append(f"lag {state.lag_records}")
    ready = [row.replicas_ready for row in state.rows if row.replicas_ready is not None]
    desired = [row.replicas_wanted for row in state.rows if row.replicas_wanted is not None]
    if ready and desired:
        parts.append(f"replicas {sum(ready)} ready {sum(desired)} wanted")
    parts += [_policy_text(line) for line in (state.harmony, *state.shadows) if _policy_text(line)]
    if state.note:
        parts.append(printable(state.note))
    return "  ".join(parts)


class LiveView:
    """Shows states as they come; use as a context manager.

    Args:
        console: stderr by default, so that stdout stays free for data.
        redraws_per_s: upper bound on redraws of a terminal.
        plain_every_s: seconds between plain lines where there is no terminal; a changed note is written at once.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        redraws_per_s: float = 4.0,
        plain_every_s: float = 5.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._every_s = 1.0 / redraws_per_s if self._console.is_terminal else plain_every_s
        self._unicode = self._console.encoding.lower().startswith("utf")
        self._live: Live | None = None
        self._last_update_s: float | None = None
        self._last_state: LiveState | None = None
        self._newest: LiveState | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._newest is not None and self._newest != self._last_state:
            self._show(self._newest)
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def update(self, state: LiveState) -> None:
        """Show this state, or keep it for later when the last one is still fresh."""
        self._newest = state
        now_s = self._clock()
        note = self._last_state.note if self._last_state is not None else ""
        if self._last_update_s is None or now_s - self._last_update_s >= self._every_s or state.note != note:
            self._last_update_s = now_s
            self._show(state)

    def _show(self, state: LiveState) -> None:
        self._last_state = state
        if self._live is None:
            self._console.print(Text(plain_line(state)), soft_wrap=True, highlight=False)
        else:
            size = self._console.size
            view = render(state, width=size.width, height=size.height, unicode=self._unicode)
            self._live.update(view, refresh=True)


def time_of(ts_ms: int | None) -> str:
    """Event time as people read it, UTC.

    >>> time_of(1763636415000)
    '2025-11-20 11:00:15'
    """
    if ts_ms is None:
        return "----"
    try:
        return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ts_ms)


def _header(state: LiveState, width: int, unicode: bool) -> Text:
    narrow = width < 84
    time = time_of(state.sim_ts_ms)[-8 if narrow else 0 :]
    times = "×" if unicode else "x"
    dot = " · " if unicode else " | "
    parts: list[tuple[str, str]] = [(time, "bold")]
    if state.speed is not None:
        parts.append((f"{state.speed:g}{times}" if state.speed else "full speed", ""))
    parts.append((f"{state.slots:,} slots", ""))
    if not narrow:
        parts.append((f"{state.forecasts:,} forecasts", ""))
    if state.forecasts_per_s is not None:
        parts.append((f"{state.forecasts_per_s:,.0f} forecasts/s", ""))
    if state.lag_records is not None:
        parts.append((f"lag {state.lag_records:,}", "bold #E69F00" if state.lag_records > 10_000 else ""))
    text = Text().append("HARMONY ", style="bold #56B4E9")
    for i, (word, style) in enumerate(parts):
        text.append(dot if i else "", style="dim")
        text.append(word, style=style or "none")
    return text


def _footer(state: LiveState, width: int, unicode: bool) -> Text:
    lines = [line for line in (state.harmony, *state.shadows) if _policy_text(line)]
    between = " · " if unicode else " | "
    if sum(len(_policy_text(line)) + len(between) for line in lines) > width:
        between = "\n"
    text = Text()
    for i, line in enumerate(lines):
        text.append(between if i else "", style="dim")
        text.append(_policy_text(line), style="bold" if line is state.harmony else "none")
    return text


def _policy_text(line: PolicyLine) -> str:
    parts = []
    if line.gpu_hours is not None:
        parts.append(f"{line.gpu_hours:,.2f} GPU-h")
    if line.cost is not None:
        parts.append(f"cost {line.cost:,.0f}")
    if line.attainment is not None:
        parts.append(f"{100 * line.attainment:.2f} %")
    return f"{printable(line.policy)} {', '.join(parts)}" if parts else ""
