"""Loops over rows and futures compiled to machine code: once per machine and version, then read from a folder.

No fast-math: every operation is the one written, in the order written, so that a row gives the same bits in any batch.
The interpreter's lock is free while they run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

__all__ = ["compiled"]

F = TypeVar("F", bound=Callable[..., object])

_config: Any = numba.config
_SOURCES: Final = (
    "averages", "backlog", "capacity_grid", "chance", "counted_misses", "expected_misses", "miss_curve",
    "naive_paths", "peaks", "posterior_draws", "powers", "queue_paths", "ridge_column", "ridge_paths",
    "ridge_residuals", "row_context", "row_draws", "row_paths", "surge_steps", "widening", "network/atom_groups",
    "network/atom_quantiles", "network/joint_paths", "network/linear_fits", "network/token_forecasts",
)  # fmt: skip


def compiled(function: F) -> F:
    """The function as machine code, compiled at its first call."""
    # What is stored knows only of changes in its own file, not of those in the files that it calls.
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(_FOLDER or "")
    try:
        return cast("F", numba.njit(nogil=True, cache=_FOLDER is not None, error_model="numpy")(function))
    finally:
        _config.CACHE_DIR = before


def _folder() -> Path | None:
    """Where this version's machine code is kept: in `NUMBA_CACHE_DIR`, beside the source, or in the user's cache.

    None where none of them can be written to: then every process compiles anew.
    """
    here = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for name in _SOURCES:
        digest.update((here / f"{name}.py").read_bytes())
    places = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else [here / "__pycache__", Path.home() / ".cache"]
    for place in places:
        folder = place / f"harmony-{digest.hexdigest()}"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


_FOLDER: Final = _folder()
