"""A child process that must not outlive its parent, however that one ends."""

from __future__ import annotations

import os
import signal
import threading
import time

_POLL_S = 0.5
_GRACE_S = 20.0


def watch_parent(poll_s: float = _POLL_S, grace_s: float = _GRACE_S) -> None:
    """From now on: when the parent is gone, SIGTERM to ourselves, and the end after `grace_s` at the latest."""
    threading.Thread(target=_watch, args=(os.getppid(), poll_s, grace_s), name="parent-watch", daemon=True).start()


def _watch(parent: int, poll_s: float, grace_s: float) -> None:
    # The parent's pid is polled because the kernel's own signal follows the thread that forked, not the process.
    while os.getppid() == parent:
        time.sleep(poll_s)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)
