"""Objects with a scale subresource, of each kind that we say we scale."""

from __future__ import annotations

from typing import Any

import yaml

from agents.records import Target
from tests.cluster.cluster import Cluster
from tests.programs import PLACES

LABELS = {"app": "w"}
POD = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
LWS_GROUP, LWS_PLURAL = "leaderworkerset.x-k8s.io", "leaderworkersets"
VERSIONS = {"Deployment": "apps/v1", "StatefulSet": "apps/v1", "LeaderWorkerSet": f"{LWS_GROUP}/v1"}


def target_of(kind: str, name: str) -> Target:
    """In the namespace `prod`."""
    return Target(VERSIONS[kind], kind, "prod", name)


def path_of(target: Target) -> str:
    plural = f"{target.kind.lower()}s"
    return f"/apis/{target.api_version}/namespaces/{target.namespace}/{plural}/{target.name}"


def scalable(target: Target, replicas: int, **more: Any) -> dict[str, Any]:
    """An object of this kind; `more` goes into its spec."""
    if target.kind == "LeaderWorkerSet":
        spec: dict[str, Any] = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": POD}}
    else:
        spec = {"selector": {"matchLabels": LABELS}, "template": POD}
        spec |= {"serviceName": "w"} if target.kind == "StatefulSet" else {}
    meta = {"name": target.name, "namespace": target.namespace}
    return {
        "apiVersion": target.api_version,
        "kind": target.kind,
        "metadata": meta,
        "spec": {**spec, "replicas": replicas, **more},
    }


def tell_groups(cluster: Cluster, target: Target, created: int, ready: int) -> None:
    """What a LeaderWorkerSet's controller, which is not among our tools, would write into its status."""
    status = {"replicas": created, "readyReplicas": ready, "hpaPodSelector": "app=w,worker-index=0"}
    cluster.call("PATCH", f"{path_of(target)}/status", {"status": status})


def serve_leader_worker_sets(cluster: Cluster) -> None:
    """The project's own resource definition where it was fetched, else one of the same name, paths and status."""
    files = [f for place in PLACES for f in (place.parents[1] / "lws-crds").glob(f"{LWS_GROUP}_*.yaml")]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    cluster.create(yaml.load(files[0].read_text(), loader) if files else _stand_in())  # noqa: S506 - a safe loader
    cluster.await_that("the kind is served", lambda: cluster.call("GET", f"/apis/{LWS_GROUP}/v1/{LWS_PLURAL}"))


def _stand_in() -> dict[str, Any]:
    paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    scale = {**paths, "labelSelectorPath": ".status.hpaPodSelector"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": LWS_PLURAL, "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    spec = {"group": LWS_GROUP, "scope": "Namespaced", "names": names}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{LWS_PLURAL}.{LWS_GROUP}"},
        "spec": {**spec, "versions": [{**version, "subresources": {"scale": scale, "status": {}}}]},
    }
