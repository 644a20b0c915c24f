"""Supervisor of worker processes: it starts them, restarts them with jittered exponential back-off, and stops them."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Self

import infra
from infra.console.errors import HarmonyError
from infra.console.web import FetchError, HttpClient

MOST_RESTARTS = 5
FORGIVEN_AFTER_S = 60.0
_STOP_GRACE_S = 15.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 10.0
_OWN_MESSAGE = re.compile(r"harmony(?: worker)?(?: stops \(|: )")


@dataclass(slots=True)
class _Member:
    command: Sequence[str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    failures_s: list[float] = field(default_factory=list)
    start_after_s: float = 0.0
    log_offset: int = 0


class Supervisor:
    """Runs commands as children that end with us.

    A child that ends is started again after a pause that doubles from one failure to the next; each pause is drawn
    between half and one and a half of that, so that workers that fell together do not come back together. A child that
    has lived for a minute starts with a clean record.

    Args:
        commands: name -> argument list.
        log_dir: each child's output goes to `<name>.log` there.
        on_restart: told name and exit code of a child that ended and will be started again.
        environment: of the children; None = ours.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        log_dir: Path,
        on_restart: Callable[[str, int], None] = lambda _name, _code: None,
        clock: Callable[[], float] = monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self._members = {name: _Member(command, log_dir / f"{name}.log") for name, command in commands.items()}
        self._on_restart = on_restart
        self._clock = clock
        self._jitter = jitter
        self._environment = environment

    def start(self) -> None:
        """Start every child."""
        for member in self._members.values():
            member.log_path.write_bytes(b"")
            self._spawn(member)

    def check(self) -> None:
        """Restart what has ended; call it about twice a second.

        Raises:
            HarmonyError: a child that was refused (exit code 2), or that ends again and again; with its last words.
        """
        now_s = self._clock()
        for name, member in self._members.items():
            if member.process is None:
                if now_s >= member.start_after_s:
                    self._spawn(member)
                continue
            code = member.process.poll()
            if now_s - member.started_s > FORGIVEN_AFTER_S:
                member.failures_s.clear()
            if code is None:
                continue
            member.process = None
            member.failures_s.append(now_s)
            failures = len(member.failures_s)
            if code == 2:
                raise HarmonyError(f"{name} cannot start: {self._last_message(member)}", 2)
            if failures > MOST_RESTARTS:
                span_s = now_s - member.failures_s[0]
                raise HarmonyError(
                    f"{name} has ended {failures} times in {span_s:.0f} s and is given up; last with "
                    f"{_ending(code)}: {self._last_message(member)}"
                )
            pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1))
            member.start_after_s = now_s + pause_s * self._jitter(0.5, 1.5)
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

    def _spawn(self, member: _Member) -> None:
        member.log_offset = member.log_path.stat().st_size
        with member.log_path.open("ab") as log:
            member.process = subprocess.Popen(
                member.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        member.started_s = self._clock()

    @staticmethod
    def _last_message(member: _Member) -> str:
        """Our own last sentence of this life, else its last line."""
        log_text = member.log_path.read_bytes()[member.log_offset :].decode(errors="replace")
        lines = [line.strip() for line in log_text.splitlines() if line.strip()]
        own = [line[match.start() :] for line in lines if (match := _OWN_MESSAGE.search(line))]
        return f"{(own or lines or ['it said nothing'])[-1]} (log: {member.log_path})"


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def worker_command(config: Path, *arguments: str) -> list[str]:
    """Argument list of a worker process of this installation."""
    # The wheel calls the package `harmony.infra`.
    return [sys.executable, "-m", infra.__name__, "worker", "--config", str(config), *arguments]


# Figures of the workers, read from their metrics pages.


_METRIC = re.compile(r'^harmony_(\w+)\{[^}]*="(\w+)"\} (\S+)$', re.MULTILINE)
_PERIOD_S = 1.0


def metric(url: str, name: str, label: str) -> int:
    """A worker's counter with one label, 0 when the worker does not answer."""
    return sum(int(float(value)) for label_, value in labelled(url, name) if label_ == label)


def labelled(url: str, name: str) -> list[tuple[str, str]]:
    """(label value, value) of a metric with one label; empty when the worker does not answer."""
    try:
        text = HttpClient(timeout_s=5.0).get(f"{url}/metrics", "*/*")
    except FetchError:
        return []
    return [(label, value) for metric, label, value in _METRIC.findall(text) if metric == name]


class LagWatch:
    """Reads the workers' lag once a second, in a thread, so that the run does not wait for their pages.

    Attributes:
        lag_records: records not read yet, all stages of all workers; None while no worker has said.
    """

    def __init__(self, urls: Sequence[str], period_s: float = _PERIOD_S) -> None:
        self.lag_records: int | None = None
        self._urls = tuple(urls)
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def look(self) -> None:
        """Read every worker once."""
        lags = [int(float(value)) for url in self._urls for _, value in labelled(url, "lag_records")]
        self.lag_records = sum(lags) if lags else None

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._period_s)
