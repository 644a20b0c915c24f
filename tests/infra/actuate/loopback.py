"""Small HTTP servers of tests, on free loopback ports."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web


async def started(app: web.Application) -> tuple[web.AppRunner, str]:
    """Serve an application on a free loopback port; its runner and address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def as_json(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
