"""A receiver of webhooks: verifies as Standard Webhooks say, remembers idempotency keys, and can be ill."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import deque
from typing import Any

import orjson
from aiohttp import web

from tests.infra.actuate.loopback import as_json, started


class Receiver:
    """`ills` are answered first, one per request: a status, "drop" (no answer), or "deaf" (done, but no answer)."""

    def __init__(self, key: bytes, counts: dict[str, int]) -> None:
        self._key = key
        self.counts = counts
        self.ills: deque[int | str] = deque()
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.bad_signatures = 0
        self._done: set[str] = set()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/scale", self._post)
        self._runner, self.url = await started(app)
        self.url += "/scale"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k.lower(): v for k, v in request.headers.items()}
        self.requests.append((headers, orjson.loads(body)))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(self._key, signed, hashlib.sha256).digest()).decode()
        if headers["webhook-signature"] != f"v1,{wanted}":
            self.bad_signatures += 1
            return as_json(401, {})
        ill = self.ills.popleft() if self.ills else None
        if isinstance(ill, int):
            return web.Response(status=ill, headers={"Location": "http://127.0.0.1:1/"} if 300 <= ill < 400 else None)
        command = orjson.loads(body)
        if ill != "drop" and headers["idempotency-key"] not in self._done:
            self._done.add(headers["idempotency-key"])
            self.counts[command["workload"]] = command["replicas"]
        if ill is not None:
            assert request.transport is not None
            request.transport.close()
        return as_json(200, {"replicas": self.counts[command["workload"]]})
