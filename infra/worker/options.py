"""What one worker process is told on its command line."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.console.errors import HarmonyError
from infra.settings.limits import ROLES


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one worker process is told beside the shared settings.

    Attributes:
        role: ingest, forecast, decide, or all.
        brokers: host:port, several separated by commas.
        instance_id: static member name; unique per process and stable over its lives.
        metrics_port: 0 = any free one.
        ticks: close silent partitions; off in replays and accelerated runs, whose publisher ticks.
        accelerated: event time is not wall time, so nothing expires by the broker's stamp.
    """

    role: str = "all"
    brokers: str = "127.0.0.1:9092"
    instance_id: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9464
    metrics_token: str | None = None
    ticks: bool = True
    accelerated: bool = False

    def roles(self) -> tuple[str, ...]:
        """The stages to run.

        Raises:
            HarmonyError: an unknown role.
        """
        if self.role == "all":
            return ROLES
        chosen = tuple(part.strip() for part in self.role.split(","))
        for part in chosen:
            if part not in ROLES:
                raise HarmonyError(f"unknown role {part!r}: use all, or some of {', '.join(ROLES)}", exit_code=2)
        return chosen

    def member_name(self) -> str | None:
        """Static member of the consumer group.

        Named after the roles too: the broker hands a static member that comes back its old assignment, whatever it
        subscribes to now, and the client fails on topics that it did not ask for.
        """
        roles = self.roles()
        return (
            self.instance_id if self.instance_id is None or roles == ROLES else f"{self.instance_id}.{'-'.join(roles)}"
        )


# A stable name for this worker that no other worker of this host has, for Kafka's static membership.


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
