"""How loaded each pod is, asked of Prometheus, so that scaling down gives up the idle ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import aiohttp
import orjson

from agents.records import Target
from infra.actuate.actuator import NotApplied
from infra.console.text import printable
from infra.console.web import split_url

DEFAULT_QUERY = (
    'sum by (pod) (vllm:num_requests_running{{namespace="{namespace}"}} + '
    'vllm:num_requests_waiting{{namespace="{namespace}"}})'
)


class PrometheusLoads:
    """Runs one instant query per scale-down; each series must have the label `pod`.

    Args:
        server: such as http://prometheus:9090.
        query: PromQL; `{namespace}` and `{name}` stand for the target's, `{{` and `}}` for braces.

    Raises:
        HarmonyError: the address is none (exit code 2).
    """

    def __init__(self, server: str, query: str = DEFAULT_QUERY, timeout_s: float = 5.0) -> None:
        split_url(server, "address of a Prometheus server: write http://host:port")
        self._url = server.rstrip("/") + "/api/v1/query"
        self._query = query
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __call__(self, target: Target, pods: Iterable[str]) -> Mapping[str, float]:
        """Pod -> load. Raises NotApplied when Prometheus does not say."""
        try:
            query = self._query.format(namespace=target.namespace, name=target.name)
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.get(self._url, params={"query": query}, allow_redirects=False) as response,
            ):
                body = orjson.loads(await response.read())
            found = {r["metric"]["pod"]: float(r["value"][1]) for r in body["data"]["result"]}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
            reason = printable(str(error), 120)
            raise NotApplied(f"Prometheus did not answer the query of loads: {type(error).__name__} {reason}") from None
        wanted = set(pods)
        return {pod: load for pod, load in found.items() if pod in wanted and math.isfinite(load) and load >= 0}
