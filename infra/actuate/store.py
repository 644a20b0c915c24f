"""What an actuator keeps on disk: its leases, the operator's overrides, and a line for everything it did.

<state dir>/actuate/words.json           kill switch and pins, for all actuators of this host; or any other path
<state dir>/actuate/<name>/guard.json    leases and rate windows; written before each change
<state dir>/actuate/<name>/audit.jsonl   one line per override and per change
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import orjson

from agents.actuation.guard import ApplyGuard, Overrides, RateCaps
from infra.console.errors import HarmonyError
from infra.console.text import printable
from streams.log import UNREADABLE


def overrides_path(state_dir: Path, path: Path | None = None) -> Path:
    """Path of the operator's overrides: the given one, or the usual one in the state directory."""
    return path or state_dir / "actuate" / "words.json"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the file, durably: a reader sees the old bytes or the new ones, also after a power cut.

    Raises:
        HarmonyError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise HarmonyError(
            f"Cannot write {path}: {error.strerror}. An actuator that cannot remember must not act; make the "
            "directory writable, or choose another with HARMONY_STATE_DIR."
        ) from error


class OverridesFile:
    """The operator's overrides on this host; may also be a mounted file that somebody else writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stat: tuple[int, int, int] | None = None
        self._overrides: Overrides | None = None

    def read(self) -> Overrides | None:
        """The overrides; None where there is no file (what held before goes on holding).

        A file that cannot be read is a thrown kill switch: nobody knows what it forbids.
        """
        try:
            status = self.path.stat()
            stat = status.st_mtime_ns, status.st_size, status.st_ino
            if stat != self._stat:
                self._overrides = msgspec.json.decode(self.path.read_bytes(), type=Overrides)
                self._stat = stat
        except FileNotFoundError:
            self._stat = self._overrides = None
        except (OSError, *UNREADABLE) as error:
            self._stat = None
            return Overrides(stopped=f"{self.path} cannot be read: {printable(str(error), 120)}")
        return self._overrides

    def change(self, edit: Callable[[Overrides], Overrides]) -> Overrides:
        """Read, edit and replace, alone.

        Raises:
            HarmonyError: the file is damaged, or cannot be written.
        """
        with self._alone():
            try:
                overrides = msgspec.json.decode(self.path.read_bytes(), type=Overrides)
            except FileNotFoundError:
                overrides = Overrides()
            except (OSError, *UNREADABLE) as error:
                raise HarmonyError(
                    f"{self.path} cannot be read ({printable(str(error), 120)}); actuators count it as a thrown kill "
                    "switch. Correct it, or remove it and give the words again."
                ) from error
            overrides = edit(overrides)
            write_atomic(self.path, msgspec.json.encode(overrides, order="deterministic") + b"\n")
            return overrides

    @contextmanager
    def _alone(self) -> Any:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(self.path.name + ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise HarmonyError(f"Cannot write beside {self.path}: {error.strerror}.") from error


class Store:
    """One actuator's directory; a context manager that keeps others out of it.

    Args:
        directory: of this actuator alone.

    Raises:
        HarmonyError: another process uses it (exit code 2), or it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self.directory / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HarmonyError(
                f"Another actuator uses {self.directory}. Stop it, or give this one a name of its own (--name).", 2
            ) from None
        except OSError as error:
            raise HarmonyError(f"Cannot use {self.directory}: {error.strerror}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def guard(
        self,
        max_replicas: int,
        caps: RateCaps,
        max_ahead_ms: int | None,
        epoch: int | None = None,
        step_ms: int | None = None,
    ) -> ApplyGuard:
        """The guard of the last life, or a new one.

        Raises:
            HarmonyError: what is stored is damaged; starting from nothing could obey an old command again.
        """
        path = self.directory / "guard.json"
        try:
            return ApplyGuard.restore(
                path.read_bytes(), max_replicas, caps=caps, max_ahead_ms=max_ahead_ms, epoch=epoch, step_ms=step_ms
            )
        except FileNotFoundError:
            return ApplyGuard(max_replicas, caps=caps, max_ahead_ms=max_ahead_ms, epoch=epoch, step_ms=step_ms)
        except (OSError, *UNREADABLE) as error:
            raise HarmonyError(
                f"{path} is damaged ({printable(str(error), 120)}), and without it an old command could be obeyed "
                "again. Remove it once no lease published before now is in force."
            ) from error

    def save(self, guard: ApplyGuard) -> None:
        """Raises HarmonyError when it cannot be written: do not act then."""
        write_atomic(self.directory / "guard.json", guard.snapshot_bytes())

    def audit(self, line: Mapping[str, Any]) -> None:
        """Append one line.

        Raises:
            HarmonyError: it cannot be written.
        """
        try:
            with (self.directory / "audit.jsonl").open("ab") as file:
                file.write(orjson.dumps(line) + b"\n")
        except OSError as error:
            raise HarmonyError(f"Cannot write {self.directory / 'audit.jsonl'}: {error.strerror}.") from error
