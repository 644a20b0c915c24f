"""How far a long command is: a bar with the time left on a terminal, a line for each part elsewhere. Always on stderr.

The time left is an estimate: the elapsed time in proportion to the share of the work that is done.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, Self

from infra.console.options import say

if TYPE_CHECKING:
    from rich.progress import Progress


class ReportProgress(Protocol):
    """Takes what begins now, and the share of all work that is done before it, 0 to 1; None: as before."""

    def __call__(self, text: str, done: float | None = None, /) -> None: ...


def duration_text(seconds: float) -> str:
    """A time left, rounded as it deserves.

    >>> duration_text(8.2), duration_text(100), duration_text(5400)
    ('9 s', '2 min', '1.5 h')
    """
    if seconds < 90:
        return f"{int(seconds) + 1} s"
    return f"{round(seconds / 60)} min" if seconds < 5_000 else f"{seconds / 3600:.1f} h"


class WorkBar:
    """A context manager that is a `ReportProgress`.

    Args:
        quiet: without a terminal nothing is written.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._last = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and "NO_PROGRESS" not in os.environ:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
            from rich.table import Column

            self._bar = Progress(
                BarColumn(24),
                TaskProgressColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"), markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0, left="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, text: str, done: float | None = None, /) -> None:
        if self._bar is None:
            if not self._quiet and text != self._last:
                say(text)
            self._last = text
            return
        self._bar.update(self._task, description=text)
        if done is not None:
            elapsed_s = self._bar.tasks[0].elapsed or 0.0
            left = f"about {duration_text(elapsed_s * (1 - done) / done)} left" if done > 0 else ""
            self._bar.update(self._task, completed=done, left=left)
