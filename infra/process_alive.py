"""Whether a process still runs, and whether a pid still means the same process."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """True while a process of this pid exists, ours or not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def birth_mark(pid: int) -> str:
    """Start of the process in ticks since boot, to tell it from a later one of its pid; empty without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name may hold anything, so fields are counted behind its closing parenthesis.
    return text.rpartition(")")[2].split()[19]
