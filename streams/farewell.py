"""How long a Kafka client may take its leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

FAREWELL_S = 5.0


async def take_leave(stopping: Awaitable[None], limit_s: float = FAREWELL_S) -> None:
    """Wait until a client has stopped, but not for long.

    Over TLS aiokafka waits for the broker to close the connection as well, up to 30 s where an answer was under way:
    longer than a worker may take to end, and than a restore should. What matters, the group and its offsets, is done
    before that.
    """
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping, limit_s)
