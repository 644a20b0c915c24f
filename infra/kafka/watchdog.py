"""Parent of the broker's JVM: stops it when the owner says so, or when the owner is gone, even by kill -9.

Run as a script of its own (standard library only, so that it starts at once):
`python -I -S kafka_watchdog.py GRACE_S COMMAND...`. Standard input is a pipe whose other end the owner holds; end of
file means stop. The owner's lock on the data directory is inherited, so it lasts exactly as long as the broker can.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    # Safe here, unlike in the owner: this process has one thread, and the signal follows the thread that forked.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _raise_stop(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _wait_for_reason_to_stop(child: subprocess.Popen[bytes], owner: int) -> None:
    while child.poll() is None and os.getppid() == owner:
        # A forked child of the owner may hold the pipe open after the owner's death, so its pid is watched too.
        if select.select([sys.stdin], [], [], _POLL_S)[0]:
            return


def main(arguments: list[str]) -> int:
    """Start the command, wait, stop it. Returns its exit status (or 128 + signal)."""
    owner = os.getppid()
    signal.signal(signal.SIGTERM, _raise_stop)
    grace_s, command = float(arguments[0]), arguments[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: PLW1509
    with suppress(KeyboardInterrupt):
        _wait_for_reason_to_stop(child, owner)
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(grace_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
