"""What `rich` makes of a table or a text, as plain text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console


def text_of(renderable: Any, width: int = 160) -> str:
    """What a terminal of this width shows of it, without colours."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()
