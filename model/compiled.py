"""Loops over rows and futures compiled to machine code: once per version, then read from a folder.

No fast-math: every operation is the one written, in the order written, so that a row gives the same bits in any batch.
The interpreter's lock is free while they run.

The code is for any x86-64 server since 2013, not for the machine that compiles it: an image may bring it along
(`python -m harmony.infra.worker.warm_up` in its build), and it is no slower (`harmony bench plan`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import llvmlite.binding

__all__ = ["compiled", "completing", "is_complete"]

_TARGET: Final = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
_NEEDED: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")  # what sets that level apart from older ones


def _choose_target() -> None:
    """Before numba is imported, for it reads its target then. Older machines, and others, get code of their own."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # a machine that LLVM cannot ask
        return
    if "NUMBA_CPU_NAME" not in os.environ and all(features.get(name) for name in _NEEDED):
        os.environ.update(_TARGET)


_choose_target()
import numba  # noqa: E402

F = TypeVar("F", bound=Callable[..., object])

_config: Any = numba.config


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

    None where none of them can be written to: then every process compiles anew. What stands beside the source and may
    not be written to, as in an image, is copied, because numba reads only where it may write.
    """
    here = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(here.rglob("*.py")):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(source)
    beside, folder_name = here / "__pycache__", f"harmony-{digest.hexdigest()}"
    places = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else [beside, Path.home() / ".cache"]
    for place in places:
        folder = place / folder_name
        with contextlib.suppress(OSError):
            if not folder.exists():
                place.mkdir(parents=True, exist_ok=True)
                _adopt(beside / folder_name, folder)
            folder.mkdir(exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def _adopt(brought: Path, folder: Path) -> None:
    """Copy machine code that was brought along, whole or not at all: other processes may start at this moment."""
    if brought.is_dir():
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=folder.parent) as parts:
            whole = Path(parts) / folder.name
            shutil.copytree(brought, whole, copy_function=shutil.copyfile)
            for path in (whole, *whole.rglob("*")):
                path.chmod(path.stat().st_mode | stat.S_IWUSR)  # folders come with the mode of those copied
            whole.rename(folder)


_FOLDER: Final = _folder()
_COMPLETE: Final = "complete"


def is_complete() -> bool:
    """Whether someone has compiled all that a worker runs."""
    return _FOLDER is not None and (_FOLDER / _COMPLETE).exists()


@contextlib.contextmanager
def completing() -> Iterator[bool]:
    """Compile all that a worker runs inside: who comes meanwhile waits, and reads.

    Yields whether it is still to be compiled; False where machine code is not kept, and nothing can be done beforehand.
    """
    if _FOLDER is None or is_complete():
        yield False
        return
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not is_complete()
        (_FOLDER / _COMPLETE).touch()
