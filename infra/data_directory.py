"""The embedded broker's data directory: its files, and the lock that lets one broker use it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from infra.console.errors import HarmonyError
from infra.process_alive import is_alive

MIN_FREE_BYTES = 256 << 20
_ORPHAN_WAIT_S = 20.0
_POLL_S = 0.1


class DataDirectory:
    """`logs/` (Kafka's), `server.properties`, `broker.log`, `ports.json` and `lock` under one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.unfinished_logs = path / "logs.unfinished"
        self.properties = path / "server.properties"
        self.log = path / "broker.log"
        self._ports = path / "ports.json"
        self._lock = path / "lock"
        self._fd: int | None = None

    @property
    def formatted(self) -> bool:
        return (self.logs / "meta.properties").is_file()

    @property
    def lock_fd(self) -> int:
        """Descriptor that holds the lock; hand it to the broker's watchdog."""
        if self._fd is None:
            raise RuntimeError("the data directory is not locked")
        return self._fd

    def acquire(self) -> None:
        """Create the directory and lock it for this process.

        Raises:
            HarmonyError: not a directory of ours, not writable, nearly full, or in use.
        """
        self._prepare()
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _ORPHAN_WAIT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                # A holder that is gone leaves a broker that is stopping: worth a wait.
                if (holder.isdigit() and is_alive(int(holder))) or time.monotonic() > deadline:
                    os.close(fd)
                    raise HarmonyError(
                        f"The Kafka data directory {self.path} is in use by process {holder or '?'}. Stop it, use "
                        "its broker with --brokers, or choose another directory with --data-dir."
                    ) from None
            time.sleep(_POLL_S)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give up this process's copy of the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            strangers = [p.name for p in self.path.iterdir()] if not self._lock.exists() else []
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise HarmonyError(
                f"Cannot keep Kafka's data in {self.path}: {error.strerror}. Choose another directory with --data-dir."
            ) from error
        if strangers:
            raise HarmonyError(
                f"{self.path} holds files that are not Kafka data of HARMONY (such as {min(strangers)}). "
                "Choose an empty or a new directory with --data-dir."
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise HarmonyError(f"Cannot write to {self.path}. Choose another directory with --data-dir.")
        if free < MIN_FREE_BYTES:
            raise HarmonyError(
                f"The disk of {self.path} is nearly full: {free >> 20} MB free, Kafka needs {MIN_FREE_BYTES >> 20} MB "
                "to start. Free some space or choose another directory with --data-dir."
            )

    def read_ports(self) -> tuple[int | None, int | None]:
        """Ports of the last start: broker's and controller's."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            ports = json.loads(self._ports.read_text())
            return int(ports["broker"]), int(ports["controller"])
        return None, None

    def write_ports(self, broker: int, controller: int) -> None:
        self._ports.write_text(json.dumps({"broker": broker, "controller": controller}) + "\n")

    def write_properties(self, text: str) -> None:
        self.properties.write_text(text)

    def rotate_log(self) -> None:
        """Keep the log of one earlier start."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        self.log.touch()
