"""A worker of a run that was killed outright must not stay behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

CHILD = """
import signal, sys, time
from infra.console.host import watch_parent
watch_parent(poll_s=0.01, grace_s={grace})
{on_term}
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
child.wait()
"""


def ends_after_the_parent_is_killed(child: str) -> bool:
    """The child holds the write end of stdout: end of file means that it is gone."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    readable, _, _ = select.select([parent.stdout], [], [], 20)
    ended = bool(readable) and parent.stdout.read() == b""
    parent.stdout.close()
    return ended


def test_child_gets_a_chance_to_finish() -> None:
    assert ends_after_the_parent_is_killed(CHILD.format(grace=15, on_term=""))


def test_child_that_does_not_listen_is_ended() -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert ends_after_the_parent_is_killed(CHILD.format(grace=0.1, on_term=ignore))
