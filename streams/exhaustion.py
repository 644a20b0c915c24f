"""Whether this process has come to the limit of what it may have open: errors then name everything but the cause."""

from __future__ import annotations

import errno
import os


def exhausted() -> str | None:
    """A sentence where no file or connection can be opened any more, else None."""
    try:
        os.close(os.dup(2))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return (
                "no file or connection can be opened any more, the limit of open files is reached; raise it "
                "(`ulimit -n`, LimitNOFILE= of systemd, --ulimit nofile= of a container)"
            )
    return None
