"""How a command ends that cannot go on: one sentence on stderr and an exit code, also when its output is lost."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from infra.console.errors import HarmonyError
from infra.console.options import say

# A full disk or quota, a file as large as may be, a device that fails.
_OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def end_when_told() -> None:
    """Let SIGTERM end a command that is the first process of a container, until the command has a handler of its own.

    Linux drops signals that such a process has no handler for: a worker told to end while it loads and compiles, for
    seconds to minutes, would go on until it is killed at the end of its grace period.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: object) -> None:
    # As the default would: nothing has been begun that must be brought to an end.
    os._exit(128 + number)


@contextmanager
def ended_plainly() -> Iterator[None]:
    """Around a whole command.

    Raises:
        SystemExit: in place of a `HarmonyError`, and of an output that nobody takes.
    """
    try:
        try:
            yield
        finally:
            # What is still held would otherwise fail when nobody can say so any more.
            sys.stdout.flush()
    except HarmonyError as error:
        say(f"harmony: {error.message}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`).
        _drop_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _OUTPUT_LOST:
            raise
        _drop_output()
        say(f"harmony: Cannot write the output: {error.strerror}. Make room, or send it elsewhere.")
        sys.exit(1)


def _drop_output() -> None:
    """Python must not complain again while it shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
