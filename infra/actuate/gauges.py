"""The leases in force as Prometheus series: computed at each scrape, so that one that has run out is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from infra.actuate.actuator import Event
from infra.actuate.controller import Desk

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

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
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
        wanted, until, stopped, caught_up = (
            GaugeMetricFamily(name, text, labels=labels) for name, _, labels, text in SERIES[:4]
        )
        name, _, labels, text = SERIES[4]
        events = CounterMetricFamily(name, text, labels=labels)
        guard, now_ms = self._desk.guard, self._desk.clock()
        leases = guard.leases
        # All of them, as many as are declared: what scales by a series would stand still without it.
        for workload, target in sorted(self._desk.targets.items()):
            replicas = self._desk.answer(workload)
            if replicas is None:
                continue
            wanted.add_metric([workload, target.namespace, target.kind, target.name], replicas)
            pin = guard.words.pin(workload, now_ms)
            end_ms = leases[workload].valid_until_ts_ms if pin is None else pin.until_ts_ms
            until.add_metric([workload], float("inf") if end_ms is None else end_ms / 1000)
        stopped.add_metric([], float(guard.words.stopped is not None))
        caught_up.add_metric([], float(self.caught_up))
        for status in _STATUSES:
            events.add_metric([status], self._events[status])
        return (wanted, until, stopped, caught_up, events)
