"""Binds the core's measurement port to Prometheus, on a registry of its own."""

from __future__ import annotations

import math
import platform
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from infra.console.host import own_version
from infra.observability.catalogue import METRICS, OTHER, Label, Metric

# A Prometheus histogram that takes counts as well as single values, for what is counted elsewhere.


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
        self._bound_labels = [floatToGoString(bound) for bound in (*bounds, float("inf"))]
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
            bucket_counts, sum_cell = self._of(labels)
            for bucket, count in enumerate(counts):
                bucket_counts[bucket] += count
            sum_cell[0] += total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """For the registry."""
        family = HistogramMetricFamily(self._name, self._help, labels=self._labels)
        with self._lock:
            series = [(labels, list(counts), total[0]) for labels, (counts, total) in sorted(self._series.items())]
        for labels, counts, total in series:
            buckets, up_to = [], 0
            for bound, count in zip(self._bound_labels, counts, strict=True):
                up_to += count
                buckets.append((bound, float(up_to)))
            family.add_metric(labels, buckets=buckets, sum_value=total)
        yield family

    def _of(self, labels: tuple[str, ...]) -> tuple[list[int], list[float]]:
        return self._series.setdefault(labels, ([0] * (len(self._bounds) + 1), [0.0]))


PREFIX = "harmony_"
_LONGEST_TEXT = 200
_MOST_SERIES_AT_START = 40

# What to add, by name and labels.
Counts = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class MeterMisuseError(Exception):
    """A measurement that no declaration in `infra.observability.catalogue` allows: a programming error."""


class PrometheusMeter:
    """A `streams.meter.Meter` whose series are bounded by the catalogue, whatever the input.

    A gauge set to NaN loses its series (an absent number is not shown as 0); an info metric keeps its newest series.
    Per-workload gauges are kept for the first `max_workload_series` workloads; further ones are dropped and counted.

    Args:
        strict: raise on misuse (tests) instead of counting it in `harmony_meter_errors_total`.
        max_workload_series: workloads that get gauges of their own.
        metrics: the declarations.
    """

    def __init__(
        self, *, strict: bool = False, max_workload_series: int = 100, metrics: Iterable[Metric] = METRICS
    ) -> None:
        # The library has only a process-wide switch; a `_created` series beside each counter would double the scrape.
        prometheus_client.disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._strict = strict
        self._max_workload_series = max_workload_series
        self._workloads: set[str] = set()
        self._lock = threading.Lock()
        self._metrics = {metric.name: metric for metric in metrics}
        self._counters = {m.name: Counter(*_declared(m), registry=self.registry) for m in self._of("counter")}
        self._gauges = {m.name: Gauge(*_declared(m), registry=self.registry) for m in self._of("gauge", "info")}
        self._histograms = {
            m.name: CountedHistogram(*_declared(m), m.buckets, self.registry) for m in self._of("histogram")
        }
        self._start()

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        try:
            values = self._label_values(name, ("counter",), labels)
            if not 0.0 <= value < math.inf:
                raise MeterMisuseError(f"{name}: a counter cannot grow by {value}")
        except MeterMisuseError as error:
            self._misused(error)
            return
        counter = self._counters[name]
        (counter.labels(*values) if values else counter).inc(value)

    def count_all(self, counts: Counts) -> None:
        """Add what was counted elsewhere."""
        for (name, labels), value in counts.items():
            self.count(name, value, **dict(labels))

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge, or the one series of an info metric."""
        try:
            values = self._label_values(name, ("gauge", "info"), labels)
        except MeterMisuseError as error:
            self._misused(error)
            return
        gauge = self._gauges[name]
        metric = self._metrics[name]
        if not values:
            gauge.set(value)
        elif metric.kind == "info":
            with self._lock:
                gauge.clear()
                gauge.labels(*values).set(1.0)
        elif math.isnan(value):
            gauge.remove(*values)
        elif self._has_room(metric, values):
            gauge.labels(*values).set(value)
        else:
            self.count("workload_gauges_dropped_total")

    def workload_gauges(self, workload: str, values: Mapping[str, float]) -> None:
        """Set gauges that have a workload for their only label; those of one too many are dropped at once."""
        dropped, room = 0, self.fits(workload)
        for name, value in values.items():
            if room or math.isnan(value):
                self.gauge(name, value, workload=workload)
            else:
                dropped += 1
        if dropped:
            self.count("workload_gauges_dropped_total", dropped)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record one value in a histogram."""
        try:
            values = self._label_values(name, ("histogram",), labels)
            if not math.isfinite(value):
                raise MeterMisuseError(f"{name}: cannot observe {value}")
        except MeterMisuseError as error:
            self._misused(error)
            return
        self._histograms[name].observe(values, value)

    def observe_counts(self, name: str, counts: Sequence[int], total: float, **labels: str) -> None:
        """Add values counted elsewhere to a histogram: how many fell into each bucket, infinity last, and their sum."""
        try:
            values = self._label_values(name, ("histogram",), labels)
            if len(counts) != len(self._metrics[name].buckets) + 1:
                raise MeterMisuseError(f"{name}: {len(counts)} counts for other buckets")
        except MeterMisuseError as error:
            self._misused(error)
            return
        self._histograms[name].add(values, counts, total)

    def forget_workload(self, workload: str) -> None:
        """Remove the series of a retired workload, which makes room for another."""
        with self._lock:
            self._workloads.discard(workload)
        for metric in self._of("gauge"):
            if any(label.domain == "workload" for label in metric.labels):
                self._gauges[metric.name].remove_by_labels({"workload": workload})

    def forget(self, name: str) -> None:
        """Remove all series of a gauge whose numbers this worker no longer knows."""
        self._gauges[name].clear()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The scrape: body and content type; OpenMetrics when the `Accept` header asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _of(self, *kinds: str) -> list[Metric]:
        return [metric for metric in self._metrics.values() if metric.kind in kinds]

    def _start(self) -> None:
        """Counters and histograms begin at 0 so that a first increase is seen; unknown numbers are NaN or absent."""
        for metric in self._of("counter", "histogram"):
            combinations = list(product(*(_values_at_start(label) for label in metric.labels)))
            if len(combinations) > _MOST_SERIES_AT_START:
                continue
            for values in combinations:
                if metric.kind == "histogram":
                    self._histograms[metric.name].start(values)
                elif values:
                    self._counters[metric.name].labels(*values)
        for metric in self._of("gauge"):
            if not metric.labels:
                self._gauges[metric.name].set(math.nan)
        if "build_info" in self._metrics:
            self.gauge("build_info", 1.0, version=own_version(), python=platform.python_version())

    def _label_values(self, name: str, kinds: tuple[str, ...], given: Mapping[str, str]) -> tuple[str, ...]:
        metric = self._metrics.get(name)
        if metric is None:
            raise MeterMisuseError(f"{name}: no such metric; declare it in infra.observability.catalogue")
        if metric.kind not in kinds:
            raise MeterMisuseError(f"{name} is a {metric.kind}, reported as a {kinds[0]}")
        unknown = given.keys() - {label.name for label in metric.labels}
        if unknown:
            raise MeterMisuseError(f"{name}: unknown labels {sorted(unknown)}")
        return tuple(_label_value(name, label, given.get(label.name, label.default)) for label in metric.labels)

    def _misused(self, error: MeterMisuseError) -> None:
        """Raise it in tests; in production count it and let the service go on."""
        if self._strict:
            raise error
        self._counters["meter_errors_total"].inc()

    def fits(self, workload: str) -> bool:
        """Whether a workload has series of its own, or there is room for them."""
        return workload in self._workloads or len(self._workloads) < self._max_workload_series

    def _has_room(self, metric: Metric, values: tuple[str, ...]) -> bool:
        for label, value in zip(metric.labels, values, strict=True):
            if label.domain == "workload":
                with self._lock:
                    if not self.fits(value):
                        return False
                    self._workloads.add(value)
        return True


class TallyingMeter:
    """Adds counts up before a meter is told: of a thousand decisions most add to the same few counters.

    Attributes:
        counts: so far.
    """

    def __init__(self) -> None:
        self.counts: Counts = {}

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        key = name, tuple(labels.items())
        self.counts[key] = self.counts.get(key, 0.0) + value


def _declared(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    return PREFIX + metric.name, metric.help, tuple(label.name for label in metric.labels)


def _values_at_start(label: Label) -> tuple[str, ...]:
    return (*label.values, OTHER) if label.domain == "open" else label.values


def _label_value(name: str, label: Label, value: str | None) -> str:
    if value is None:
        raise MeterMisuseError(f"{name}: label {label.name} is missing")
    if label.domain == "fixed" and value not in label.values:
        raise MeterMisuseError(f"{name}: {label.name}={value!r} is none of {label.values}")
    if label.domain == "open" and value not in label.values:
        return OTHER
    return value[:_LONGEST_TEXT]
