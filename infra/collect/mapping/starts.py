"""The stages of a replica's start, from the series of kube-state-metrics about its pod.

A pod is created, scheduled, runs its containers (after their image is pulled), and is ready. Each instant is that of
the newest transition, so it is the start's only while nothing has happened twice. A start is therefore reported only of
a pod that was created after the first look, and that was looked at all the time until it was ready. Its containers
count only while none has restarted. A stage of which a series is missing is absent.

Source: kube-state-metrics, docs/metrics/workload/pod-metrics.md; Kubernetes documentation, "Pod lifecycle".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, Final, Literal

from infra.collect.points import Point, is_measured, own_labels

Instant = Literal["created", "scheduled", "started", "ready"]
_INSTANTS: Final[Mapping[str, Instant]] = {
    "kube_pod_created": "created",
    "kube_pod_status_scheduled_time": "scheduled",
    "kube_pod_container_state_started": "started",
    "kube_pod_status_ready_time": "ready",
}
_RESTARTS: Final = "kube_pod_container_status_restarts_total"
_POD_NODE: Final = "kube_pod_info"
_NODE_CREATED: Final = "kube_node_created"
START_SERIES: Final = (*_INSTANTS, _RESTARTS, _POD_NODE, _NODE_CREATED)
# A pod that nobody looked at for longer may have been ready in between, and not be ready again since.
_MAX_GAP_MS: Final = 120_000
# Containers of an image that the node has start within seconds; a longer stage has pulled it, or attached volumes.
_MAX_WARM_S: Final = 10.0
# A pod that is in no series any more has ended; it is forgotten after so long.
_FORGOTTEN_AFTER_MS: Final = 3_600_000
_MAX_KEPT_STARTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """One start, in seconds by stage; a stage is None where a series of it is missing.

    Attributes:
        schedule_s: from creation until a node was found.
        pull_s: from then until all containers ran: images, volumes, init containers.
        load_s: from then until the pod was ready.
        total_s: from creation until the pod was ready.
        new_node: whether the node is younger than the pod.
    """

    workload: str
    pod: str
    schedule_s: float | None
    pull_s: float | None
    load_s: float | None
    total_s: float
    new_node: bool | None

    @property
    def cold(self) -> bool | None:
        """Whether the node had to be prepared: a new one, or one that pulled the image; None where nothing tells."""
        if self.new_node or (self.pull_s is not None and self.pull_s > _MAX_WARM_S):
            return True
        return None if self.pull_s is None else False

    def sentence(self) -> str:
        """For people, without a full stop."""
        known = {
            "until scheduled": self.schedule_s,
            "until its containers ran": self.pull_s,
            "until ready": self.load_s,
        }
        parts = ", ".join(f"{seconds:.0f} s {name}" for name, seconds in known.items() if seconds is not None)
        kind = {True: "cold start", False: "warm start", None: "start"}[self.cold]
        node = " on a new node" if self.new_node else ""
        return f"{self.workload}: {kind} of {self.pod}{node} took {self.total_s:.0f} s" + (
            f" ({parts})" if parts else ""
        )


@dataclass(slots=True)
class _Pod:
    """What one look has said of a pod, and what earlier ones have."""

    ts_ms: int = 0
    instants: dict[str, float] = field(default_factory=dict)
    restarts: float | None = None
    node: str = ""
    looked_ms: int | None = None
    is_done: bool = False


class PodStarts:
    """Follows pods until they are ready.

    Args:
        workload_of: of namespace and name of a pod; None = of none.
    """

    def __init__(self, workload_of: Callable[[str, str], str | None]) -> None:
        self._workload_of = workload_of
        self._pods: dict[tuple[str, str, str], _Pod] = {}
        self._node_created_s: dict[str, float] = {}
        self._since_ms: int | None = None
        self._sweep_ms = 0
        self.starts: list[ReplicaStart] = []

    def read(self, points: Iterable[Point]) -> list[ReplicaStart]:
        """The starts that have become known by the points of one look, which may hold several scrapes of a pod."""
        found = []
        ordered = sorted((point for point in points if point.name in START_SERIES), key=attrgetter("ts_ms"))
        for point in ordered:
            if not is_measured(point.value):
                continue
            if self._since_ms is None:
                self._since_ms = point.ts_ms
            labels = own_labels(point.labels)
            if point.name == _NODE_CREATED:
                self._node_created_s[labels.get("node", "")] = point.value
                continue
            if labels.get("uid") and labels.get("pod"):
                start = self._add(point, labels)
                if start is not None:
                    found.append(start)
        self.starts = (self.starts + found)[-_MAX_KEPT_STARTS:]
        if ordered:
            self._forget(ordered[-1].ts_ms)
        return found

    def _add(self, point: Point, labels: Mapping[str, str]) -> ReplicaStart | None:
        """Take one point; the start, where this one begins a new scrape and the one before has completed it."""
        key = labels.get("namespace", ""), labels["pod"], labels["uid"]
        pod = self._pods.setdefault(key, _Pod())
        if point.ts_ms < pod.ts_ms:
            return None
        start = None
        if point.ts_ms > pod.ts_ms:
            start = self._completed(key[0], key[1], pod)
            pod.ts_ms, pod.instants, pod.restarts = point.ts_ms, {}, None
        if point.name == _POD_NODE:
            pod.node = labels.get("node", "")
        elif point.name == _RESTARTS:
            pod.restarts = max(point.value, pod.restarts or 0.0)
        else:
            # Of several containers the last one to start counts.
            instant = _INSTANTS[point.name]
            pod.instants[instant] = max(point.value, pod.instants.get(instant, 0.0))
        return start

    def _completed(self, namespace: str, name: str, pod: _Pod) -> ReplicaStart | None:
        if pod.is_done or not pod.instants:
            return None
        created_s, ready_s = pod.instants.get("created"), pod.instants.get("ready")
        if created_s is None or self._since_ms is None or created_s * 1000 < self._since_ms:
            pod.is_done = True
            return None
        before_ms = created_s * 1000 if pod.looked_ms is None else pod.looked_ms
        pod.looked_ms = pod.ts_ms
        pod.is_done = ready_s is not None or pod.ts_ms - before_ms > _MAX_GAP_MS
        if ready_s is None or ready_s < created_s or pod.ts_ms - before_ms > _MAX_GAP_MS:
            return None
        workload = self._workload_of(namespace, name)
        if workload is None:
            return None
        scheduled_s, started_s = pod.instants.get("scheduled"), pod.instants.get("started")
        if pod.restarts != 0:
            started_s = None
        node_s = self._node_created_s.get(pod.node)
        return ReplicaStart(
            workload,
            name,
            _seconds(created_s, scheduled_s),
            _seconds(scheduled_s, started_s),
            _seconds(started_s, ready_s),
            ready_s - created_s,
            None if node_s is None else node_s >= created_s,
        )

    def _forget(self, now_ms: int) -> None:
        if now_ms < self._sweep_ms:
            return
        self._sweep_ms = now_ms + _FORGOTTEN_AFTER_MS
        self._pods = {key: pod for key, pod in self._pods.items() if pod.ts_ms > now_ms - _FORGOTTEN_AFTER_MS}


def _seconds(begin: float | None, end: float | None) -> float | None:
    """From one instant to another; None where one is missing, or clocks of two machines contradict each other."""
    return None if begin is None or end is None or end < begin else end - begin


def summaries(starts: Iterable[ReplicaStart]) -> Iterator[dict[str, Any]]:
    """Per workload: how many starts were cold and warm, and the median seconds of each stage."""
    by_workload: dict[str, list[ReplicaStart]] = {}
    for start in starts:
        by_workload.setdefault(start.workload, []).append(start)
    for workload, some in sorted(by_workload.items()):
        kinds = {"cold": [s for s in some if s.cold], "warm": [s for s in some if s.cold is False]}
        yield {"workload": workload, "starts": len(some)} | {
            kind: {"starts": len(of), "median_s": _medians(of)} for kind, of in kinds.items() if of
        }


def _medians(starts: list[ReplicaStart]) -> dict[str, float]:
    found = {}
    for stage in ("schedule_s", "pull_s", "load_s", "total_s"):
        values = [value for start in starts if (value := getattr(start, stage)) is not None]
        if values:
            found[stage.removesuffix("_s")] = median(values)
    return found
