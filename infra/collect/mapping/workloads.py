"""From labels to the names of workload, replica and source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import NamedTuple

from infra.collect.mapping.schema import PLACEHOLDER, ExporterProfile, WorkloadRule
from infra.collect.points import own_labels
from streams.records.limits import is_plain
from streams.records.schema import MAX_LABEL_CHARS

POD_OWNER = "pod_owner"
# The alphabet of Kubernetes' generated suffixes: no vowels, no digits that look like letters.
_SUFFIX = "[bcdfghjklmnpqrstvwxz2456789]"
_DEPLOYMENT_POD = re.compile(rf"^(.+)-{_SUFFIX}{{5,10}}-{_SUFFIX}{{5}}$")
_STATEFUL_POD = re.compile(r"^(.+?)-\d+$")
_OTHER_POD = re.compile(rf"^(.+)-{_SUFFIX}{{5}}$")
_NOT_PLAIN = re.compile(r"""[\s<>"'`&\\]|[^\x20-\x7e]""")
_REMEMBERED = 65_536


class Identity(NamedTuple):
    """Who measured: `replica` is the process, `source` its part (an engine, a device)."""

    workload: str
    replica: str
    source: str


class NoIdentity(NamedTuple):
    """Why a series has no workload or no source."""

    reason: str


def pod_owner(pod: str) -> str:
    """Deployment, StatefulSet or DaemonSet of a pod, by the way Kubernetes names pods; else the pod itself."""
    for pattern in (_DEPLOYMENT_POD, _STATEFUL_POD, _OTHER_POD):
        match = pattern.match(pod)
        if match:
            return match.group(1)
    return pod


def matches(labels: Mapping[str, str], patterns: Mapping[str, str]) -> bool:
    """True when every wanted label is there; `*` and `?` match as in file names."""
    return all(fnmatchcase(labels.get(name, ""), pattern) for name, pattern in patterns.items())


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
        self._relevant: dict[str, tuple[str, ...]] = {}
        self._identities_by_key: dict[tuple[str, tuple[str | None, ...]], Identity | NoIdentity] = {}

    def of(self, profile: ExporterProfile, labels: Mapping[str, str]) -> Identity | NoIdentity:
        """Who measured a series with these labels."""
        relevant = self._relevant.get(profile.name)
        if relevant is None:
            relevant = self._relevant[profile.name] = tuple(sorted(set(self._names(profile))))
        key = profile.name, tuple([labels.get(name) for name in relevant])
        identity = self._identities_by_key.get(key)
        if identity is None:
            if len(self._identities_by_key) >= _REMEMBERED:
                self._identities_by_key.clear()
            identity = self._identities_by_key[key] = self._find(profile, labels)
        return identity

    def _names(self, profile: ExporterProfile) -> Iterator[str]:
        """Every label that may decide."""
        templates = (*profile.replica, *profile.workload, *(r.workload for r in self._rules), self._template or "")
        names = [name for template in templates for name in PLACEHOLDER.findall(template)]
        names += ["pod" if name == POD_OWNER else name for name in names]
        names += profile.parts
        for match in (*self._declared.values(), *(rule.match for rule in self._rules)):
            names += match
        for name in names:
            yield name
            yield f"exported_{name}"

    def _find(self, profile: ExporterProfile, labels: Mapping[str, str]) -> Identity | NoIdentity:
        own = {name: value for name, value in own_labels(labels).items() if value}
        if "pod" in own:
            own.setdefault(POD_OWNER, pod_owner(own["pod"]))
        workload = self._workload(profile, own)
        if isinstance(workload, NoIdentity):
            return workload
        replica = _first(profile.replica, own)
        if replica is None:
            return NoIdentity(f"no label names the source: {_needed(profile.replica)}")
        parts = [own[name] for name in profile.parts if name in own]
        return Identity(_plain(workload), _plain(replica), _plain("/".join((replica, *parts))))

    def _workload(self, profile: ExporterProfile, labels: Mapping[str, str]) -> str | NoIdentity:
        for workload, match in self._declared.items():
            if matches(labels, match):
                return workload
        for rule in self._rules:
            if matches(labels, rule.match):
                named = _filled(rule.workload, labels)
                return named or NoIdentity(f"the rule for {rule.match} names {rule.workload}, but a label is missing")
        templates = (self._template,) if self._template else profile.workload
        return _first(templates, labels) or NoIdentity(f"no label names the workload: {_needed(templates)}")


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
