"""Limits of replicas that a cluster already has: of a HorizontalPodAutoscaler, KEDA's, or the target's own count.

They are read from the series of kube-state-metrics. KEDA sets its limits through an HPA of its own, `keda-hpa-NAME`.

Source: kube-state-metrics, docs/metrics/workload (horizontalpodautoscaler, deployment, statefulset).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from infra.collect.points import Point, own_labels

_HPA: Final = "kube_horizontalpodautoscaler_"
_HPA_INFO, _HPA_MIN, _HPA_MAX = f"{_HPA}info", f"{_HPA}spec_min_replicas", f"{_HPA}spec_max_replicas"
_HPA_WANTED: Final = f"{_HPA}status_desired_replicas"
_KEDA_PREFIX: Final = "keda-hpa-"
# Series of a target's own count: the label with its name, its API version and its kind.
_TARGETS: Final = {
    "kube_deployment_spec_replicas": ("deployment", "apps/v1", "Deployment"),
    "kube_statefulset_replicas": ("statefulset", "apps/v1", "StatefulSet"),
}
LIMIT_SERIES: Final = (_HPA_INFO, _HPA_MIN, _HPA_MAX, _HPA_WANTED, *_TARGETS)
"""What a Prometheus server is asked for."""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """What is known of one target.

    Attributes:
        api_version, kind: of the target.
        wanted: replicas that it is to have now; None: not known.
        min, max: of its autoscaler; None: it has none.
        source: whose limits they are, for people.
    """

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    wanted: int | None = None
    min: int | None = None
    max: int | None = None
    source: str = ""


@dataclass(slots=True)
class _Autoscaler:
    target: tuple[str, str, str] | None = None  # API version, kind, name
    numbers: dict[str, int] = field(default_factory=dict)


def replica_limits(points: Iterable[Point]) -> Mapping[tuple[str, str], ReplicaLimits]:
    """By namespace and name of the target; the newest point of a series counts.

    >>> labels = {"namespace": "prod", "deployment": "chat"}
    >>> replica_limits([Point("kube_deployment_spec_replicas", labels, 0, 12.0)])["prod", "chat"].wanted
    12
    """
    limits: dict[tuple[str, str], ReplicaLimits] = {}
    autoscalers: dict[tuple[str, str], _Autoscaler] = {}
    for point in sorted(points, key=lambda point: point.ts_ms):
        labels = own_labels(point.labels)
        namespace = labels.get("namespace", "")
        if point.name in _TARGETS:
            label, version, kind = _TARGETS[point.name]
            if labels.get(label):
                limits[namespace, labels[label]] = ReplicaLimits(version, kind, int(point.value))
        elif point.name in LIMIT_SERIES and labels.get("horizontalpodautoscaler"):
            one = autoscalers.setdefault((namespace, labels["horizontalpodautoscaler"]), _Autoscaler())
            if point.name == _HPA_INFO:
                kind = labels.get("scaletargetref_kind", "Deployment")
                version = labels.get("scaletargetref_api_version", "apps/v1")
                one.target = version, kind, labels.get("scaletargetref_name", "")
            else:
                one.numbers[point.name] = int(point.value)
    for (namespace, name), one in autoscalers.items():
        if one.target is None or _HPA_MAX not in one.numbers:
            continue
        version, kind, target = one.target
        before = limits.get((namespace, target), ReplicaLimits())
        keda = name.startswith(_KEDA_PREFIX)
        limits[namespace, target] = replace(
            before,
            api_version=version,
            kind=kind,
            wanted=max((n for n in (before.wanted, one.numbers.get(_HPA_WANTED)) if n is not None), default=None),
            min=one.numbers.get(_HPA_MIN, 1),
            max=one.numbers[_HPA_MAX],
            source=f"KEDA's {name.removeprefix(_KEDA_PREFIX)}" if keda else f"the HPA {name}",
        )
    return limits
