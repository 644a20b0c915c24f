"""From a pod to the workload that owns it, by its owner references or by the rules by which controllers name pods.

A name alone can be ambiguous: `llama-3-1` is the second pod of StatefulSet `llama-3`, or the first worker of the fourth
group of LeaderWorkerSet `llama`. `PodOwners` therefore remembers which other pods there are. The owner references that
kube-state-metrics reports win over names. Labels that name the owner win over both, because they name the outermost.

Sources: Kubernetes documentation, "StatefulSets", "Jobs" (completion index), "CronJob" (scheduled minute); Deployment
and Argo Rollouts (pod template hash); LeaderWorkerSet (`<name>-<group>[-<worker>]`, workers from 1); Knative Serving
(`<service>-<generation>-deployment`). kube-state-metrics, docs/metrics/workload, for the series of owners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

POD_OWNER = "pod_owner"
DEPLOYMENT_OWNER = "deployment_owner"
# The alphabet of Kubernetes' generated suffixes: no vowels, no digits that look like letters.
_SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]"
_DEPLOYMENT_POD = re.compile(rf"^(.+)-{_SUFFIX}{{5,10}}-{_SUFFIX}{{5}}$")
# The minute of a CronJob's run since 1970 (the second, in old versions), then the pod's suffix.
_CRON_POD = re.compile(rf"^(.+)-(?:[23]\d{{7}}|1\d{{9}})-{_SUFFIX}{{5}}$")
_INDEXED_POD = re.compile(rf"^(.+?)((?:-\d+)+)-{_SUFFIX}{{5}}$")
_CRON_JOB = re.compile(r"^(.+)-(?:[23]\d{7}|1\d{9})$")
_GROUP_POD = re.compile(r"^(.+)-(\d+)-(\d+)$")
_STATEFUL_POD = re.compile(r"^(.+)-\d+$")
_OTHER_POD = re.compile(rf"^(.+)-{_SUFFIX}{{5}}$")
_REVISION = re.compile(r"^(.+)-\d{5}-deployment$")
# Labels and attributes that hold the owner's name, the outermost owner first.
OWNER_LABELS = tuple(
    prefix + name
    for name in ("leaderworkerset_sigs_k8s_io_name", "serving_knative_dev_service", "k8s_cronjob_name", "k8s_job_name")
    for prefix in ("", "label_")
)
# Series of kube-state-metrics that hold an owner reference: the kind of what is owned, and the label with its name.
OWNER_SERIES: Final = {
    "kube_pod_owner": ("Pod", "pod"),
    "kube_replicaset_owner": ("ReplicaSet", "replicaset"),
    "kube_job_owner": ("Job", "job_name"),
}
# As releases of kube-state-metrics write the owner of what has none.
_NO_OWNER: Final = frozenset({"", "<none>"})
_MAX_LEVELS: Final = 4
_EXPORTER = re.compile(r"exporter|dcgm|telegraf|otel|opentelemetry|collector|grafana-agent|alloy|node-problem-detector")
_MAX_NAMES = 200_000


def revision_owner(deployment: str) -> str:
    """The Knative service whose revision a Deployment is; any other Deployment is its own.

    >>> revision_owner("chat-predictor-00003-deployment"), revision_owner("chat-70b")
    ('chat-predictor', 'chat-70b')
    """
    match = _REVISION.match(deployment)
    return match.group(1) if match else deployment


def is_exporter(labels: Mapping[str, str]) -> bool:
    """True when pod or container is that of an exporter or an agent, by its name."""
    return any(_EXPORTER.search(labels.get(name, "")) for name in ("pod", "container"))


class _Owned(NamedTuple):
    """An object, or what owns it; the kind of no owner is ""."""

    kind: str
    name: str


class PodOwners:
    """Owners of pods, and which names have been seen, to resolve those that are ambiguous.

    After `_MAX_NAMES` names all are forgotten and learned again.
    """

    def __init__(self) -> None:
        self._references: dict[tuple[str, _Owned], _Owned] = {}
        self._pods: set[tuple[str, str]] = set()
        self._sets: dict[tuple[str, str], float] = {}
        self._group_sets: set[tuple[str, str]] = set()

    def add_pod(self, namespace: str, pod: str) -> bool:
        """Take note of a pod; true when it is a new one whose name may decide who owns another."""
        if (namespace, pod) in self._pods:
            return False
        if len(self._pods) >= _MAX_NAMES:
            self._pods.clear()
        stem = _index_stem(pod)
        self._pods.update(((namespace, pod), (namespace, stem or pod)))
        return stem is not None or _STATEFUL_POD.match(pod) is not None

    def add_set(self, namespace: str, name: str, num_replicas: float) -> bool:
        """Take note of a StatefulSet; true when it is a new one, or has another number of replicas."""
        if self._sets.get((namespace, name)) == num_replicas:
            return False
        if len(self._sets) >= _MAX_NAMES:
            self._sets.clear()
            self._group_sets.clear()
        self._sets[namespace, name] = num_replicas
        return True

    def add_reference(self, series: str, labels: Mapping[str, str]) -> bool:
        """Take note of an owner reference; true when it is a new one that may decide who owns a pod.

        Args:
            series: one of `OWNER_SERIES`.
            labels: of its point. References to an owner that is not the controller are passed over.
        """
        kind, label = OWNER_SERIES[series]
        if not labels.get(label) or labels.get("owner_is_controller") == "false":
            return False
        namespace, owned = labels.get("namespace", ""), _Owned(kind, labels[label])
        owner_kind = labels.get("owner_kind", "")
        owner = _Owned("", "") if owner_kind in _NO_OWNER else _Owned(owner_kind, labels.get("owner_name", ""))
        if self._references.get((namespace, owned)) == owner:
            return False
        if len(self._references) >= _MAX_NAMES:
            self._references.clear()
        before = self.owner(namespace, owned.name) if kind == "Pod" else None
        self._references[namespace, owned] = owner
        return before is None or self.owner(namespace, owned.name) != before

    def owner(self, namespace: str, pod: str) -> str:
        """The owner of a pod: Deployment, StatefulSet, DaemonSet, Job, LeaderWorkerSet and so on; else the pod itself.

        >>> owners = PodOwners()
        >>> labels = {"namespace": "p", "pod": "gpu-bcdfg-x2k8p", "owner_kind": "DaemonSet", "owner_name": "gpu-bcdfg"}
        >>> owners.owner("p", "gpu-bcdfg-x2k8p"), owners.add_reference("kube_pod_owner", labels)
        ('gpu', True)
        >>> owners.owner("p", "gpu-bcdfg-x2k8p")
        'gpu-bcdfg'
        """
        top, is_complete = self._top(namespace, _Owned("Pod", pod))
        match top.kind:
            case "Pod" | "ReplicaSet":
                return top.name if is_complete else self.owner_by_name(namespace, pod)
            case "Node":  # a static pod
                return pod
            case "Deployment":
                return revision_owner(top.name)
            case "Job":
                cron = None if is_complete else _CRON_JOB.match(top.name)
                return cron.group(1) if cron else top.name
            case "StatefulSet":
                # No series tells who owns a StatefulSet; that of a LeaderWorkerSet's group belongs to the whole set.
                named = self.owner_by_name(namespace, pod)
                return named if re.fullmatch(rf"{re.escape(named)}-\d+", top.name) else top.name
            case _:
                return top.name

    def _top(self, namespace: str, owned: _Owned) -> tuple[_Owned, bool]:
        """The outermost owner that is known, and whether it is known to have no owner itself."""
        for _ in range(_MAX_LEVELS):
            above = self._references.get((namespace, owned))
            if above is None:
                return owned, False
            if not above.kind:
                return owned, True
            owned = above
        return owned, False

    def owner_by_name(self, namespace: str, pod: str) -> str:
        """The owner of a pod by its name alone.

        >>> names = PodOwners()
        >>> names.owner_by_name("prod", "chat-70b-5d9c7b6f4-x2k8p"), names.owner_by_name("prod", "llama-3-1")
        ('chat-70b', 'llama-3')
        >>> names.add_pod("prod", "llama-3")
        True
        >>> names.owner_by_name("prod", "llama-3-1")
        'llama'
        """
        match = _DEPLOYMENT_POD.match(pod)
        if match:
            return revision_owner(match.group(1))
        match = _CRON_POD.match(pod)
        if match:
            return match.group(1)
        match = _INDEXED_POD.match(pod)
        if match:
            # Job `llama-3` and completion index 3 of Job `llama` look alike; an indexed Job has an index 0.
            name, index = match.group(1), match.group(2)
            has_first = (namespace, name + re.sub(r"\d+", "0", index)) in self._pods
            return name if has_first else name + index
        match = _GROUP_POD.match(pod)
        if match and match.group(3) != "0":
            name, group, _ = match.groups()
            is_set = (namespace, f"{name}-{group}-0") in self._pods
            if not is_set and (namespace, f"{name}-{group}") in self._pods:
                return name
        match = _STATEFUL_POD.match(pod) or _OTHER_POD.match(pod)
        return match.group(1) if match else pod

    def group_set_of(self, namespace: str, name: str) -> str | None:
        """The LeaderWorkerSet of which this StatefulSet holds the workers of one group; None for any other one.

        A LeaderWorkerSet of n groups has a StatefulSet of its name with n leaders, and one per group: `<name>-<group>`.
        """
        match = _STATEFUL_POD.match(name)
        if match is None:
            return None
        leaders = self._sets.get((namespace, match.group(1)))
        group = int(name.rpartition("-")[2])
        if leaders is not None and group < leaders:
            self._group_sets.add((namespace, name))
        # A group that is being removed is still one.
        return match.group(1) if (namespace, name) in self._group_sets else None


def owner_label(labels: Mapping[str, str]) -> str | None:
    """The owner that a label names."""
    for name in OWNER_LABELS:
        if labels.get(name):
            return labels[name]
    deployment = labels.get("k8s_deployment_name")
    return revision_owner(deployment) if deployment else None


def _index_stem(pod: str) -> str | None:
    """Name and index of a Job's pod, without its suffix."""
    match = None if _DEPLOYMENT_POD.match(pod) else _INDEXED_POD.match(pod)
    return match.group(1) + match.group(2) if match else None
