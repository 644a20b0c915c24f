"""What `rich` makes of a table or a text, as plain text."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def text_of(renderable: Any, width: int = 160) -> str:
    """What a terminal of this width shows of it, without colours."""
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()
