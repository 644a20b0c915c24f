"""For scalers that ask us (KEDA, HPA through Prometheus): the lease itself is the deed, so nothing is to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from agents.records import Target
from infra.actuate.actuator import Event, ReplicaChange
from infra.actuate.controller import CommandController
from infra.actuate.keda import Lookup, NoAnswer
from infra.observability.probes import may_ask


class Answers:
    """An actuator whose target follows the answer.

    What the cluster really has is the scaler's to see; the count compared with a command's expectation is the answer in
    force, and without one what the command says of the fleet.
    """

    done: Literal["accepted"] = "accepted"

    def __init__(self, name: str) -> None:
        self.name = name

    async def observe(
        self,
        workload: str,  # noqa: ARG002
        target: Target,  # noqa: ARG002
        expected: int | None,
        in_force: int | None,
    ) -> int | None:
        return expected if in_force is None else in_force

    async def apply(self, change: ReplicaChange) -> str:  # noqa: ARG002
        return ""


# The replicas in force as JSON, for KEDA's metrics-api trigger and for anything else that can read a number.


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
        query = request.query
        try:
            workload = self._lookup.workload(query.get("workload"), query.get("namespace", ""), query.get("name", ""))
            return _json(200, {"workload": workload, "replicas": self._lookup.replicas(workload)})
        except NoAnswer as error:
            return _json(404 if error.unknown else 503, {"error": error.detail})


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body) + b"\n", content_type="application/json")


# The leases in force as Prometheus series: computed at each scrape, so that one that has run out is not there.


_LABELS = ("workload", "namespace", "kind", "name")
# Name, type, labels, what it says: the table of docs/actuators.md.
SERIES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("harmony_wanted_replicas", "gauge", _LABELS, "Replicas in force; no series when no lease or pin is."),
    (
        "harmony_lease_valid_until_seconds",
        "gauge",
        ("workload",),
        "When the lease (or pin) runs out, seconds since 1970; +Inf for a pin without end.",
    ),
    ("harmony_actuator_stopped", "gauge", (), "1 while the kill switch of this actuator is thrown, else 0."),
    ("harmony_actuator_caught_up", "gauge", (), "1 once the commands topic has been read to where it ended at start."),
    (
        "harmony_actuator_events_total",
        "counter",
        ("status",),
        "What became of commands; a renewed lease is not counted.",
    ),
)
_STATUSES = ("accepted", "applied", "refused", "expired", "failed")


class LeaseGauges:
    """Collector and scrape in one; see `infra.observability.probes.Scrape`."""

    def __init__(self, controller: CommandController) -> None:
        self._controller = controller
        self._events: Counter[str] = Counter()
        self.caught_up = False
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, event: Event) -> None:
        """Take in an event."""
        self._events[event.status] += 1

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type of a scrape."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterable[Metric]:
        """All series as of now."""
        desired, until, stopped, caught_up = (
            GaugeMetricFamily(name, text, labels=labels) for name, _, labels, text in SERIES[:4]
        )
        name, _, labels, text = SERIES[4]
        events = CounterMetricFamily(name, text, labels=labels)
        guard, now_ms = self._controller.guard, self._controller.clock()
        leases = guard.leases
        # All of them, as many as are declared: what scales by a series would stand still without it.
        for workload, target in sorted(self._controller.targets.items()):
            replicas = self._controller.answer(workload)
            if replicas is None:
                continue
            desired.add_metric([workload, target.namespace, target.kind, target.name], replicas)
            pin = guard.overrides.pin(workload, now_ms)
            end_ms = leases[workload].valid_until_ts_ms if pin is None else pin.until_ts_ms
            until.add_metric([workload], float("inf") if end_ms is None else end_ms / 1000)
        stopped.add_metric([], float(guard.overrides.stopped is not None))
        caught_up.add_metric([], float(self.caught_up))
        for status in _STATUSES:
            events.add_metric([status], self._events[status])
        return (desired, until, stopped, caught_up, events)
