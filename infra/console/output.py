"""Results on stdout: a terminal gets tables that fit it, a pipe or a file whole lines without colours.

A table that is too wide for a terminal loses columns, the least important first; no word is broken for it. Text of one
column may go on in the next line, at spaces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from infra.console.text import COLUMN_GAP, columns_that_fit

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_NO_LIMIT: Final = 100_000
_WRAPPED_WIDTH: Final = 30


def output() -> Console:
    """The console for results."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=_NO_LIMIT, color_system=None, force_terminal=False, highlight=False)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column.

    Attributes:
        rank: as `columns_that_fit` has it.
        right: numbers stand right.
        wraps: its text goes on in the next line where it must.
    """

    heading: str
    rank: int = 0
    right: bool = False
    wraps: bool = False


@dataclass(slots=True)
class FittedTable:
    """A table for `output()`.

    Attributes:
        rows: cells, as plain or styled text.
        caption: a line below.
        ruled: a line below the headings.
    """

    columns: Sequence[TableColumn]
    rows: list[Sequence[str | Text]] = field(default_factory=list)
    caption: str = ""
    ruled: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(cell_len(column.heading), *(cell_len(_plain(row[k])) for row in self.rows)) if self.rows else 0
            for k, column in enumerate(self.columns)
        ]
        needed = [min(w, _WRAPPED_WIDTH) if c.wraps else w for w, c in zip(widths, self.columns, strict=True)]
        shown = columns_that_fit(needed, [column.rank for column in self.columns], options.max_width)
        table = Table(
            box=box.SIMPLE_HEAD if self.ruled else None,
            show_edge=False,
            pad_edge=False,
            # The box has a divider of its own, a space.
            padding=(0, COLUMN_GAP - self.ruled, 0, 0),
        )
        for k in shown:
            column = self.columns[k]
            table.add_column(
                column.heading,
                justify="right" if column.right else "left",
                no_wrap=not column.wraps,
                overflow="fold" if column.wraps else "ellipsis",
            )
        for row in self.rows:
            table.add_row(*(row[k] if isinstance(row[k], Text) else Text(str(row[k])) for k in shown))
        yield table
        if self.caption:
            yield Text(self.caption, style="dim")


def _plain(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell
