"""The live view of `harmony run`: what the fleet asks for, what is forecast, what was decided, in one small table.

On a terminal it is redrawn in place; elsewhere one plain line is written every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from infra.console.text import printable
from infra.live_state import LiveState, PolicyLine
from infra.live_table import fleet_table


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
    words = [time_of(state.sim_ts_ms)]
    if state.speed is not None:
        words.append(f"speed {state.speed:g}x" if state.speed else "full speed")
    words.append(f"slots {state.slots}")
    rate = f" ({state.forecasts_per_s:.0f}/s)" if state.forecasts_per_s is not None else ""
    words.append(f"forecasts {state.forecasts}{rate}")
    if state.lag_records is not None:
        words.append(f"lag {state.lag_records}")
    ready = [row.replicas_ready for row in state.rows if row.replicas_ready is not None]
    wanted = [row.replicas_wanted for row in state.rows if row.replicas_wanted is not None]
    if ready and wanted:
        words.append(f"replicas {sum(ready)} ready {sum(wanted)} wanted")
    words += [_policy_words(line) for line in (state.harmony, *state.shadows) if _policy_words(line)]
    if state.note:
        words.append(printable(state.note))
    return "  ".join(words)


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
        self._shown_s: float | None = None
        self._shown: LiveState | None = None
        self._newest: LiveState | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._newest is not None and self._newest != self._shown:
            self._show(self._newest)
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def update(self, state: LiveState) -> None:
        """Show this state, or keep it for later when the last one is still fresh."""
        self._newest = state
        now_s = self._clock()
        said = self._shown.note if self._shown is not None else ""
        if self._shown_s is None or now_s - self._shown_s >= self._every_s or state.note != said:
            self._shown_s = now_s
            self._show(state)

    def _show(self, state: LiveState) -> None:
        self._shown = state
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
    words: list[tuple[str, str]] = [(time, "bold")]
    if state.speed is not None:
        words.append((f"{state.speed:g}{times}" if state.speed else "full speed", ""))
    words.append((f"{state.slots:,} slots", ""))
    if not narrow:
        words.append((f"{state.forecasts:,} forecasts", ""))
    if state.forecasts_per_s is not None:
        words.append((f"{state.forecasts_per_s:,.0f} forecasts/s", ""))
    if state.lag_records is not None:
        words.append((f"lag {state.lag_records:,}", "bold #E69F00" if state.lag_records > 10_000 else ""))
    text = Text().append("HARMONY ", style="bold #56B4E9")
    for i, (word, style) in enumerate(words):
        text.append(dot if i else "", style="dim")
        text.append(word, style=style or "none")
    return text


def _footer(state: LiveState, width: int, unicode: bool) -> Text:
    lines = [line for line in (state.harmony, *state.shadows) if _policy_words(line)]
    between = " · " if unicode else " | "
    if sum(len(_policy_words(line)) + len(between) for line in lines) > width:
        between = "\n"
    text = Text()
    for i, line in enumerate(lines):
        text.append(between if i else "", style="dim")
        text.append(_policy_words(line), style="bold" if line is state.harmony else "none")
    return text


def _policy_words(line: PolicyLine) -> str:
    words = []
    if line.gpu_hours is not None:
        words.append(f"{line.gpu_hours:,.2f} GPU-h")
    if line.attainment is not None:
        words.append(f"{100 * line.attainment:.2f} %")
    return f"{printable(line.policy)} {', '.join(words)}" if words else ""
