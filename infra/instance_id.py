"""A stable name for this worker that no other worker of this host has, for Kafka's static membership."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.console.errors import HarmonyError

_MOST = 1000


class InstanceId:
    """Holds a name until closed or the process ends; a restarted worker gets the same one again.

    Two members of one name would fence each other without a word from Kafka, hence the lock.

    Args:
        state_dir: where the locks live.
        configured: the name to hold; None = host name and the lowest free number.

    Raises:
        HarmonyError: the configured name is held by another worker of this host.
    """

    def __init__(self, state_dir: Path, configured: str | None = None) -> None:
        host = socket.gethostname() or "host"
        self._fd: int | None = None
        directory = state_dir / "instances"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            # A read-only root file system is a container's, whose host name is its own.
            self.name = configured or host
            return
        for name in [configured] if configured else [f"{host}-{n}" for n in range(_MOST)]:
            path = directory / re.sub(r"[^A-Za-z0-9._-]", "_", name)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError:
                # A full disk stops nobody; without a lock only the process itself is sure to be one of its kind.
                self.name = configured or f"{host}-{os.getpid()}"
                return
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            self.name = name
            self._fd = fd
            return
        raise HarmonyError(
            f"Another worker on this host is {configured!r} already. Give each its own --instance-id, or none at all.",
            2,
        )

    def close(self) -> None:
        """Let another worker have the name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
