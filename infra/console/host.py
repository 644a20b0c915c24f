"""Where HARMONY keeps files of its own: the cache (may be deleted at any time) and the state."""

from __future__ import annotations

import os
from pathlib import Path


def _xdg(variable: str, fallback: str) -> Path:
    # The XDG rules: a relative path in the variable counts as unset.
    value = os.environ.get(variable, "")
    root = Path(value) if value and Path(value).is_absolute() else Path.home() / fallback
    return root / "harmony"


def cache_home() -> Path:
    """`$XDG_CACHE_HOME/harmony`, else `~/.cache/harmony`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def state_home() -> Path:
    """`$XDG_STATE_HOME/harmony`, else `~/.local/state/harmony`."""
    return _xdg("XDG_STATE_HOME", ".local/state")
