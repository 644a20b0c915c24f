"""A Prometheus histogram that takes counts as well as single values, for what is counted elsewhere."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class CountedHistogram(Collector):
    """One histogram family.

    Args:
        bounds: upper bounds of the buckets, ascending; the last, infinite one is added.
    """

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._help, self._labels = name, help_text, tuple(labels)
        self._bounds = tuple(bounds)
        self._shown = [floatToGoString(bound) for bound in (*bounds, float("inf"))]
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        registry.register(self)

    def start(self, labels: tuple[str, ...]) -> None:
        """Show a series before its first value."""
        with self._lock:
            self._of(labels)

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """Count one value."""
        with self._lock:
            counts, total = self._of(labels)
            counts[bisect_left(self._bounds, value)] += 1
            total[0] += value

    def add(self, labels: tuple[str, ...], counts: Sequence[int], total: float) -> None:
        """Count many values: how many fell into each bucket (one more than bounds), and their sum."""
        with self._lock:
            mine, mine_total = self._of(labels)
            for bucket, count in enumerate(counts):
                mine[bucket] += count
            mine_total[0] += total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """For the registry."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        with self._lock:
            series = [(labels, list(counts), total[0]) for labels, (counts, total) in sorted(self._series.items())]
        for labels, counts, total in series:
            buckets, up_to = [], 0
            for shown, count in zip(self._shown, counts, strict=True):
                up_to += count
                buckets.append((shown, float(up_to)))
            family.add_metric(labels, buckets=buckets, sum_value=total)
        yield family

    def _of(self, labels: tuple[str, ...]) -> tuple[list[int], list[float]]:
        return self._series.setdefault(labels, ([0] * (len(self._bounds) + 1), [0.0]))
