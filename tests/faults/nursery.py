"""Workers that need no time to import: forked off a process that has imported everything, one process each.

A worker's imports take longer than its restore, and a fault history has dozens of lives. What is killed is a process
like any other. The undisturbed workers that histories are compared with start the ordinary way, with another hash seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

_POLL_S = 0.02


class Forked:
    """As much of `subprocess.Popen` as the tests need."""

    def __init__(self, pid: int, status: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        if self.returncode is None and self._status.exists():
            self.returncode = int(self._status.read_text(encoding="ascii"))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = monotonic() + (60.0 if timeout is None else timeout)
        while self.poll() is None:
            if monotonic() > deadline:
                raise subprocess.TimeoutExpired(["worker", str(self.pid)], timeout or 60.0)
            sleep(_POLL_S)
        return self.returncode or 0


class Nursery:
    """The process that forks. Ends when its standard input does, and its workers with it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        home.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery", str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
        """Run `python -m ARGUMENTS` in a child, its output appended to the log."""
        order = {"arguments": list(arguments), "environment": dict(environment), "log": str(log)}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        pid = int(stdout.readline())
        return Forked(pid, self._home / f"{pid}.status")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _serve(home: Path) -> None:
    import infra.cli.app
    import infra.worker.process  # noqa: F401 - this is what takes the time

    while True:
        if select.select([0], [], [], _POLL_S)[0]:
            order = b""
            while not order.endswith(b"\n"):
                part = os.read(0, 65_536)
                if not part:
                    return
                order += part
            pid = os.fork()
            if pid == 0:
                _be_born(**json.loads(order))
            os.write(1, b"%d\n" % pid)
        _bury(home)


def _bury(home: Path) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            scratch = home / f"{pid}.new"
            scratch.write_text(str(os.waitstatus_to_exitcode(status)), encoding="ascii")
            scratch.replace(home / f"{pid}.status")


def _be_born(arguments: list[str], environment: dict[str, str], log: str) -> None:
    code = 1
    try:
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for source, target in ((null, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - a worker's death must not become a second nursery
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
