"""Free ports on the loopback interface, below the range from which systems draw ephemeral ones."""

from __future__ import annotations

import random
import socket
from collections.abc import Container

FIRST_PORT = 10_240
LAST_PORT = 32_767
LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """True when nothing answers on the port and it can be bound."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return False
    with socket.socket() as probe:
        # As the JVM does: connections of a predecessor still in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port(taken: Container[int] = ()) -> int:
    """A free port that is not among `taken`.

    Raises:
        OSError: none found in a thousand draws.
    """
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(FIRST_PORT, LAST_PORT)
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port between {FIRST_PORT} and {LAST_PORT}")
