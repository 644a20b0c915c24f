"""`compiled`: a loop over rows or scenarios as machine code, kept in a folder for each version of the sources.

There is no fast-math: every operation is the one written, in the order written, so a row has the same bits in any
batch. The interpreter's lock is free while a loop runs.

Loops of many files call those of `model.numerics`, `model.capacity.grid` and `model.baselines.context_kernel`. numba's
own cache notices changes of the file of a loop, but not of the files that it calls. So the folder is named by a digest
of all sources with compiled loops, and numba keeps its files inside. (`streams.compiled` needs no digest, because no
loop there calls one of another file.)

Code is for the level x86-64-v3 (any server since 2013), so an image may bring it along
(`python -m harmony.infra.worker.warm_up` in its build); it is as fast as code for the machine (`harmony bench plan`).
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

# CPU level of the code, and the features that it needs.
_TARGET: Final = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
_NEEDED_FEATURES: Final = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")


def _choose_target() -> None:
    """Set the CPU level before numba is imported, which reads it then; machines without it get their own code."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # LLVM does not know this machine
        return
    if "NUMBA_CPU_NAME" not in os.environ and all(features.get(name) for name in _NEEDED_FEATURES):
        os.environ.update(_TARGET)


_choose_target()
import numba  # noqa: E402

F = TypeVar("F", bound=Callable[..., object])

_config: Any = numba.config


def compiled(function: F) -> F:
    """The function as machine code, compiled at its first call or read from the folder of this version."""
    before, _config.CACHE_DIR = _config.CACHE_DIR, str(_FOLDER or "")
    try:
        return cast("F", numba.njit(nogil=True, cache=_FOLDER is not None, error_model="numpy")(function))
    finally:
        _config.CACHE_DIR = before


def _folder() -> Path | None:
    """The folder of this version: in `NUMBA_CACHE_DIR`, beside the sources, or in the user's cache.

    None where none of them is writable; every process then compiles for itself. Code beside the sources of a read-only
    image is copied, because numba reads only from folders that it may write to.
    """
    here = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(here.rglob("*.py")):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(source)
    source_cache, folder_name = here / "__pycache__", f"harmony-{digest.hexdigest()}"
    places = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else [source_cache]
    if not _config.CACHE_DIR:
        with contextlib.suppress(RuntimeError):  # a user without a home directory
            places.append(Path.home() / ".cache")
    for place in places:
        folder = place / folder_name
        with contextlib.suppress(OSError):
            if not folder.exists():
                place.mkdir(parents=True, exist_ok=True)
                _adopt(source_cache / folder_name, folder)
            folder.mkdir(exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


def _adopt(brought: Path, folder: Path) -> None:
    """Copy code of an image, as a whole or not at all, because other processes may start at the same moment."""
    if brought.is_dir():
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=folder.parent) as parts:
            copy = Path(parts) / folder.name
            shutil.copytree(brought, copy, copy_function=shutil.copyfile)
            for path in (copy, *copy.rglob("*")):
                path.chmod(path.stat().st_mode | stat.S_IWUSR)  # copied folders have the mode of their originals
            copy.rename(folder)


_FOLDER: Final = _folder()
_COMPLETE: Final = "complete"


def is_complete() -> bool:
    """Whether all loops that a worker runs are compiled."""
    return _FOLDER is not None and (_FOLDER / _COMPLETE).exists()


@contextlib.contextmanager
def completing() -> Iterator[bool]:
    """Compile all loops of a worker inside the block; other processes wait and then read the code.

    Yields whether there is something to compile; False where no folder is writable.
    """
    if _FOLDER is None or is_complete():
        yield False
        return
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not is_complete()
        (_FOLDER / _COMPLETE).touch()
