"""`compiled`: a loop over samples as machine code, kept in numba's file cache (docs/adr/0018, 0022).

No compiled function of this package calls one of another file, so numba's own rule is enough: code is stale when the
content of its file has changed. There is no fast-math: every sum is the one written, in the order written. The
interpreter's lock is free while a loop runs.

Code is for the level x86-64-v3 (any server since 2013), so that an image may bring it along. Other machines get code
of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import llvmlite.binding

__all__ = ["compiled", "compiling_once"]

_TARGET: Final = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
_NEEDED_FEATURES: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")


def _choose_target() -> None:
    """Set the CPU level before numba is imported, because numba reads it then."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know this machine.
        return
    if "NUMBA_CPU_NAME" not in os.environ and all(features.get(name) for name in _NEEDED_FEATURES):
        os.environ.update(_TARGET)


_choose_target()
import numba  # noqa: E402

F = TypeVar("F", bound=Callable[..., object])

_folders: list[Path] = []  # where numba keeps the code of this package, in the order of the imports


def compiled(function: F) -> F:
    """The function as machine code, compiled at its first call or read from numba's file cache."""
    try:
        dispatcher: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # No folder can be written to: every process compiles for itself.
        return cast("F", numba.njit(nogil=True, error_model="numpy")(function))
    if dispatcher is function:  # NUMBA_DISABLE_JIT is set.
        return function
    folder = Path(dispatcher.stats.cache_path)
    _adopt(Path(function.__code__.co_filename), folder)
    _folders.append(folder)
    return cast("F", dispatcher)


@cache
def _adopt(source: Path, folder: Path) -> None:
    """Copy the code that an image brought beside a source file to numba's folder for it.

    numba reads only from a folder that it may write to. Newer code that is already there stays.
    """
    with contextlib.suppress(OSError):
        # ".nbc" sorts before ".nbi": an index must not name code that is not there yet.
        for path in sorted((source.parent / "__pycache__").glob(f"{source.stem}.*.nb[ci]"), key=_by_suffix):
            target = folder / path.name
            if not target.exists() or target.stat().st_mtime < path.stat().st_mtime:
                part = folder / f"{path.name}.{os.getpid()}"
                shutil.copyfile(path, part)
                part.replace(target)


def _by_suffix(path: Path) -> tuple[str, str]:
    return path.suffix, path.name


@contextlib.contextmanager
def compiling_once() -> Iterator[None]:
    """Run the block in one process of the host at a time: the first one compiles, the others read its code."""
    if not _folders:
        yield
        return
    with (_folders[0] / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
