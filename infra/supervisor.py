"""Keeps worker processes alive: starts them, restarts one that ended, with jittered back-off, and stops them all."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from infra.errors import HarmonyError

_MOST_RESTARTS = 5
_FORGIVEN_AFTER_S = 60.0
_STOP_GRACE_S = 15.0


@dataclass(slots=True)
class _Member:
    command: Sequence[str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    restarts: int = 0
    start_after_s: float = 0.0
    last_words: list[str] = field(default_factory=list)


class Supervisor:
    """Runs commands as children that end with us.

    Args:
        commands: name -> argument list.
        log_dir: each child's stderr goes to `<name>.log` there.
        on_restart: told name and exit code of a child that ended.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        log_dir: Path,
        on_restart: Callable[[str, int], None] = lambda _name, _code: None,
    ) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._members = {name: _Member(command, log_dir / f"{name}.log") for name, command in commands.items()}
        self._on_restart = on_restart
        self._jitter = random.Random()

    def start(self) -> None:
        """Start every child."""
        for member in self._members.values():
            member.log_path.write_bytes(b"")
            self._spawn(member)

    def check(self) -> None:
        """Restart what has ended.

        Raises:
            HarmonyError: a child that was refused (exit code 2), or that ends again and again; with its last words.
        """
        now_s = monotonic()
        for name, member in self._members.items():
            if member.process is None:
                if now_s >= member.start_after_s:
                    self._spawn(member)
                continue
            code = member.process.poll()
            if code is None:
                if now_s - member.started_s > _FORGIVEN_AFTER_S:
                    member.restarts = 0
                continue
            member.process = None
            member.restarts += 1
            if code == 2 or member.restarts > _MOST_RESTARTS:
                raise HarmonyError(f"{name} ended with exit code {code}: {self._last_words(member)}")
            # Jitter: workers that fell together must not come back together.
            member.start_after_s = now_s + min(10.0, 0.5 * 2**member.restarts) * self._jitter.uniform(0.5, 1.5)
            self._on_restart(name, code)

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL to what has not ended in time."""
        running = [m.process for m in self._members.values() if m.process is not None and m.process.poll() is None]
        for process in running:
            process.terminate()
        deadline_s = monotonic() + _STOP_GRACE_S
        for process in running:
            try:
                process.wait(max(0.1, deadline_s - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now."""
        return {name: m.process.pid for name, m in self._members.items() if m.process is not None}

    @staticmethod
    def _spawn(member: _Member) -> None:
        with member.log_path.open("ab") as log:
            member.process = subprocess.Popen(member.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        member.started_s = monotonic()

    @staticmethod
    def _last_words(member: _Member) -> str:
        lines = [line for line in member.log_path.read_text(errors="replace").splitlines() if line.strip()]
        words = next(
            (line for line in reversed(lines) if "harmony worker" in line), lines[-1] if lines else "no output"
        )
        return f"{words.strip()} (log: {member.log_path})"


def worker_command(config: Path, *arguments: str) -> list[str]:
    """Argument list of a worker process of this installation."""
    return [sys.executable, "-m", "infra", "worker", "--config", str(config), *arguments]
