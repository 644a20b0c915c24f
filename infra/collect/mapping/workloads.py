"""From labels to the names of workload, replica and source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import NamedTuple

from infra.collect.mapping.owners import (
    DEPLOYMENT_OWNER,
    OWNER_LABELS,
    OWNER_SERIES,
    POD_OWNER,
    PodOwners,
    is_exporter,
    owner_label,
    revision_owner,
)
from infra.collect.mapping.schema import PLACEHOLDER, ExporterProfile, WorkloadRule
from infra.collect.points import EXPORTED, Point, is_measured, own_labels
from streams.records.limits import is_plain
from streams.records.schema import MAX_LABEL_CHARS

_NOT_PLAIN = re.compile(r"""[\s<>"'`&\\]|[^\x20-\x7e]""")
_REMEMBERED = 65_536
_EXPORTED_POD, _EXPORTED_NAMESPACE = EXPORTED + "pod", EXPORTED + "namespace"
_SET_REPLICAS = "kube_statefulset_replicas"
# Labels of the target that say nothing of a device which the target measures for others.
_OF_TARGET = frozenset({"pod", "namespace", "container", POD_OWNER})
_DECIDING = ("pod", "namespace", "container", "deployment", "instance", "k8s_deployment_name")


class Identity(NamedTuple):
    """Who measured: `replica` is the process, `source` its part (an engine, a device)."""

    workload: str
    replica: str
    source: str


class NoIdentity(NamedTuple):
    """Why a series has no workload or no source.

    Attributes:
        replica: the process that measured it, where labels name one.
    """

    reason: str
    replica: str = ""


def matches(labels: Mapping[str, str], patterns: Mapping[str, str]) -> bool:
    """True when every wanted label is there; `*` and `?` match as in file names."""
    return all(fnmatchcase(labels.get(name, ""), pattern) for name, pattern in patterns.items())


def matches_any(labels: Mapping[str, str], patterns: Mapping[str, Sequence[str]]) -> bool:
    """True when every label fits one of its patterns; a label that is not there fits the empty pattern."""
    return all(any(fnmatchcase(labels.get(name, ""), p) for p in some) for name, some in patterns.items())


class Identities:
    """Names workloads and sources by rules; remembers what it found, since the same series come again and again.

    Args:
        declared: of harmony.yaml: workload id -> labels that name it; they win.
        rules: of mapping files, in their order.
        template: for every profile in place of its own templates.
    """

    def __init__(
        self,
        declared: Mapping[str, Mapping[str, str]] | None = None,
        rules: Sequence[WorkloadRule] = (),
        template: str | None = None,
    ) -> None:
        self._declared = {workload: dict(match) for workload, match in (declared or {}).items()}
        self._rules = tuple(rules)
        self._template = template
        self._pods = PodOwners()
        # Targets of which some series names another pod than the target's own.
        self._attributing: set[str] = set()
        self._relevant: dict[str, frozenset[str]] = {}
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Identity | NoIdentity] = {}

    def learn(self, point: Point) -> None:
        """Take note of the pods, sets and owners that a point names: other points may be told apart by them."""
        labels = point.labels
        exported, pod = labels.get(_EXPORTED_POD), labels.get("pod")
        is_news = False
        if exported or pod:
            namespace = labels.get(_EXPORTED_NAMESPACE) or labels.get("namespace", "")
            is_news = self._pods.add_pod(namespace, exported or pod or "")
        if point.name == _SET_REPLICAS:
            own = own_labels(labels)
            is_news |= self._pods.add_set(own.get("namespace", ""), own.get("statefulset", ""), point.value)
        if point.name in OWNER_SERIES:
            if is_measured(point.value):
                is_news |= self._pods.add_reference(point.name, own_labels(labels))
        elif exported and pod and (target := _target(labels)) not in self._attributing:
            self._attributing.add(target)
            is_news = True
        if is_news:
            # What was concluded without it may be wrong.
            self._known.clear()

    def of(self, profile: ExporterProfile, labels: Mapping[str, str]) -> Identity | NoIdentity:
        """Who measured a series with these labels."""
        relevant = self._relevant.get(profile.name)
        if relevant is None:
            relevant = self._relevant[profile.name] = frozenset(self._names(profile))
        # Labels in another order only are found anew.
        key = profile.name, tuple([item for item in labels.items() if item[0] in relevant])
        identity = self._known.get(key)
        if identity is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            own = {name: value for name, value in own_labels(labels).items() if value}
            identity = self._known[key] = self._find(profile, own, labels)
        return identity

    def _names(self, profile: ExporterProfile) -> Iterator[str]:
        """Every label that may decide."""
        templates = (*profile.replica, *profile.workload, *(r.workload for r in self._rules), self._template or "")
        names = [name for template in templates for name in PLACEHOLDER.findall(template)]
        names += [*_DECIDING, *OWNER_LABELS, *profile.parts]
        for match in (*self._declared.values(), *(rule.match for rule in self._rules)):
            names += match
        for name in names:
            yield name
            yield f"exported_{name}"

    def _find(self, profile: ExporterProfile, own: dict[str, str], labels: Mapping[str, str]) -> Identity | NoIdentity:
        namespace = own.get("namespace", "")
        if "pod" in own:
            own.setdefault(POD_OWNER, owner_label(own) or self._pods.owner(namespace, own["pod"]))
        if "deployment" in own:
            own.setdefault(DEPLOYMENT_OWNER, revision_owner(own["deployment"]))
        replica = _first(profile.replica, own)
        workload = self._workload(profile, own, labels)
        if isinstance(workload, NoIdentity):
            return workload._replace(replica=replica or "")
        if replica is None:
            return NoIdentity(f"no label names the source: {_needed(profile.replica)}")
        # The engines of a process are one source; each device is one.
        parts = [own[name] for name in profile.parts if name in own] if profile.kind == "gpu" else []
        return Identity(_plain(workload), _plain(replica), _plain("/".join((replica, *parts))))

    def _workload(
        self, profile: ExporterProfile, own: Mapping[str, str], labels: Mapping[str, str]
    ) -> str | NoIdentity:
        for workload, match in self._declared.items():
            if matches(own, match):
                return workload
        for rule in self._rules:
            if matches(own, rule.match):
                named = _filled(rule.workload, own)
                return named or NoIdentity(f"the rule for {rule.match} names {rule.workload}, but a label is missing")
        if "statefulset" in own and profile.kind == "fleet":
            groups = self._pods.group_set_of(own.get("namespace", ""), own["statefulset"])
            if groups is not None:
                return NoIdentity(f"StatefulSets of the groups of LeaderWorkerSet {groups} are no workloads")
        templates = (self._template,) if self._template else profile.workload
        if profile.kind == "gpu" and self._is_exporters_pod(own, labels):
            named = _first(templates, {name: own[name] for name in own if name not in _OF_TARGET})
            return named or NoIdentity("the only pod named is the exporter's own, not one that uses the device")
        return _first(templates, own) or NoIdentity(f"no label names the workload: {_needed(templates)}")

    def _is_exporters_pod(self, own: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """True when the pod is that of the target and the target is an exporter, which measures for other pods."""
        if "pod" not in own or labels.get(_EXPORTED_POD):
            return False
        return is_exporter(own) or _target(labels) in self._attributing


def _target(labels: Mapping[str, str]) -> str:
    return labels.get("instance") or labels.get("pod", "")


def _first(templates: Sequence[str], labels: Mapping[str, str]) -> str | None:
    return next((filled for t in templates if (filled := _filled(t, labels)) is not None), None)


def _filled(template: str, labels: Mapping[str, str]) -> str | None:
    """The template with its labels put in; None when one is missing."""
    if any(name not in labels for name in PLACEHOLDER.findall(template)):
        return None
    return PLACEHOLDER.sub(lambda match: labels[match.group(1)], template)


def _needed(templates: Sequence[str]) -> str:
    return "it would be " + " or ".join(templates)


def _plain(name: str) -> str:
    """A name that records may hold; a longer one keeps its beginning and a digest of the whole."""
    if len(name) > MAX_LABEL_CHARS:
        # JSON may hold half of a surrogate pair, which has no bytes in UTF-8.
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        name = f"{name[: MAX_LABEL_CHARS - 9]}-{digest}"
    name = _NOT_PLAIN.sub("-", name)
    return name if is_plain(name, MAX_LABEL_CHARS) else "unnamed"
