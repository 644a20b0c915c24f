"""The replicas in force as JSON, for KEDA's metrics-api trigger and for anything else that can read a number."""

from __future__ import annotations

import orjson
from aiohttp import web

from infra.actuate.keda import Lookup, NoAnswer
from infra.observability.probes import may_ask


class LeaseRoutes:
    """`GET /v1/replicas?workload=ID`, or `?namespace=NS&name=NAME` of the target.

    200 with `{"workload", "replicas"}`; 503 while no lease is in force; 404 for what nobody knows. `valueLocation` of
    the trigger is `replicas`.

    Args:
        token: needed where the server is open to the network, as a bearer token.
    """

    def __init__(self, lookup: Lookup, token: str | None) -> None:
        self._lookup, self._token = lookup, token

    def add_to(self, app: web.Application) -> None:
        """Register the route."""
        app.router.add_get("/v1/replicas", self._replicas, allow_head=False)

    async def _replicas(self, request: web.Request) -> web.Response:
        if not may_ask(request, self._token):
            return _json(401 if self._token else 403, {"error": "a token is needed"})
        asked = request.query
        try:
            workload = self._lookup.workload(asked.get("workload"), asked.get("namespace", ""), asked.get("name", ""))
            return _json(200, {"workload": workload, "replicas": self._lookup.replicas(workload)})
        except NoAnswer as error:
            return _json(404 if error.unknown else 503, {"error": error.detail})


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body) + b"\n", content_type="application/json")
