"""A worker's web server with few open files, in a process of its own: `python -m tests.infra.observability.crowded`.

It prints its port, and ends with its standard input. Arguments: number of open files; `free` lets connections be.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from time import monotonic

import uvloop

from infra.observability import connections
from infra.observability.connections import Listener
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.probes import ProbeServer
from infra.page.live import LiveFleet, WorkerStatus
from infra.page.memory import FleetMemory
from infra.page.server import PageRoutes
from streams.topics import Topics


async def serve() -> None:
    live = LiveFleet(FleetMemory(Topics(), 5_000), lambda: WorkerStatus("f", "all", "w", "0", "live", ready=True))
    server = ProbeServer(
        Health(monotonic()),
        PrometheusMeter(),
        port=0,
        parts=(PageRoutes(live).add_to,),
    )
    await server.start()
    print(server.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


def _leave(*_: object) -> None:
    """Close no connection for another."""


def main() -> None:
    files, *words = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    if "free" in words:
        Listener._make_room = Listener._drop = _leave  # type: ignore[method-assign, assignment]
        connections.IDLE_TIMEOUT_S = 3_600.0  # type: ignore[misc]
    uvloop.install()
    asyncio.run(serve())


if __name__ == "__main__":
    main()
