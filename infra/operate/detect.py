"""What `harmony init --detect` finds at an address: a Prometheus server or an exporter, and its workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Literal

from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader, SourceReading
from infra.collect.mapping.workloads import Identities
from infra.collect.points import Point
from infra.collect.sources.prometheus import PrometheusApi, PrometheusError
from infra.collect.sources.scrape import Scraper, parse_target
from infra.console.errors import HarmonyError
from infra.console.web import HttpClient, printable_url
from infra.operate.replica_limits import LIMIT_SERIES, ReplicaLimits, replica_limits

_TIMEOUT_S = 10.0
# Long enough for two scrapes of a server that looks once a minute.
_WINDOW_S = 150


@dataclass(frozen=True, slots=True)
class DetectedWorkload:
    """A workload as its telemetry shows it.

    Attributes:
        replicas: engines that answered, or as the cluster says; None where only devices speak.
        devices: GPUs that report for it.
        limits: of its target, where the cluster reports them.
    """

    id: str
    replicas: int | None
    devices: int
    limits: ReplicaLimits | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name of its target: collectors name workloads so where they can."""
        namespace, _, name = self.id.rpartition("/")
        return namespace.partition("/")[0] or "default", name

    @property
    def running(self) -> int:
        """Replicas that run, or that its target is to have: the larger one."""
        return max(self.replicas or 0, (self.limits.wanted if self.limits is not None else None) or 0)

    @property
    def gpus_per_replica(self) -> int:
        """As far as can be told; 1 where nothing can."""
        return max(1, round(self.devices / self.replicas)) if self.replicas and self.devices else 1


@dataclass(frozen=True, slots=True)
class Detection:
    """What an address holds.

    Attributes:
        kind: how to collect from it.
        address: as it was given, without a password.
        interval_s: between two samples of a series, where that can be seen.
        unplaced: why samples have no workload, and how many.
    """

    kind: Literal["prometheus", "exporter"]
    address: str
    workloads: tuple[DetectedWorkload, ...]
    interval_s: float | None = None
    unplaced: dict[str, int] = field(default_factory=dict)


def detect(address: str) -> Detection:
    """Ask what is there, once.

    Raises:
        HarmonyError: no address, nobody answers, or nothing is known of what is said (exit code 2).
    """
    reader = Reader(choose((), ()).profiles, Identities())
    http = HttpClient(_TIMEOUT_S)
    url = address if "://" in address else f"http://{address}"
    where = printable_url(address)
    kind: Literal["prometheus", "exporter"] = "prometheus"
    try:
        points: Sequence[Point] = PrometheusApi(url, http).samples([*reader.names, *LIMIT_SERIES], _WINDOW_S)
    except PrometheusError as problem:
        kind = "exporter"
        read = Scraper(lambda: [parse_target(address)], lambda n: n in LIMIT_SERIES or reader.reads(n), http)()
        points = read.points
        if read.failures:
            raise HarmonyError(
                f"{where} is neither a Prometheus server ({problem}) nor an exporter "
                f"({next(iter(read.failures.values()))}). Check the address.",
                2,
            ) from None
    limits = replica_limits(points)
    workloads = tuple(replace(w, limits=limits.get(w.place)) for w in _workloads(reader.read(points)))
    unplaced = {f"{profile}: {reason}": n for (profile, reason), n in reader.tally.unplaced.items()}
    if not workloads:
        why = f" ({next(iter(unplaced))})" if unplaced else ""
        raise HarmonyError(
            f"{where} answers, but none of its series is of a known engine, GPU or cluster exporter{why}; "
            "`harmony collect profiles` lists those, and docs/collectors.md says how to name others.",
            2,
        )
    return Detection(kind, where, workloads, _interval_s(points), unplaced)


def _workloads(readings: Iterable[SourceReading]) -> Iterable[DetectedWorkload]:
    engines: dict[str, set[str]] = defaultdict(set)
    devices: dict[str, set[str]] = defaultdict(set)
    replica_counts: dict[str, int] = {}
    for reading in readings:
        if reading.kind == "requests":
            engines[reading.workload].add(reading.replica)
        elif reading.kind == "gpu":
            devices[reading.workload].add(reading.source)
        elif "replicas_ready" in reading.values:
            replica_counts[reading.workload] = int(reading.values["replicas_ready"])
    # A cluster's exporter tells of everything that runs in it; only what also serves or computes is to be scaled.
    for workload in sorted({*engines, *devices}):
        replicas = replica_counts.get(workload) or len(engines[workload]) or None
        yield DetectedWorkload(workload, replicas, len(devices[workload]))


def _interval_s(points: Iterable[Point]) -> float | None:
    times: dict[tuple[str, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
    for point in points:
        times[point.name, tuple(sorted(point.labels.items()))].append(point.ts_ms)
    gaps = [b - a for stamps_ms in map(sorted, map(set, times.values())) for a, b in pairwise(stamps_ms)]
    return median(gaps) / 1000 if gaps else None
