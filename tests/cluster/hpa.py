"""An HPA of ours on a real controller: set its behaviour, see what it sees, wait for what it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.cluster.cluster import Cluster, controllers
from tests.cluster.external_metrics import metrics_server
from tests.cluster.our_side import NAME, Side
from tests.programs import ROOT

MANIFESTS = ROOT / "infra/deploy/kubernetes"
HPA: dict[str, Any] = yaml.safe_load((MANIFESTS / "hpa.yaml").read_text())
HPA_PATH = f"/apis/autoscaling/v2/namespaces/prod/horizontalpodautoscalers/{NAME}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/prod/deployments/{NAME}"


def start_with_twenty(cluster: Cluster) -> None:
    """A Deployment of twenty replicas, and the HPA of the manifest on it."""
    labels = {"app": NAME}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"replicas": 20, "selector": {"matchLabels": labels}, "template": pod}
    meta = {"name": NAME, "namespace": "prod"}
    cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
    cluster.await_that("twenty pods", lambda: cluster.call("GET", DEPLOYMENT)["status"].get("replicas") == 20)
    cluster.create(HPA)


@contextmanager
def scaled_by_hpa(cluster: Cluster) -> Iterator[Side]:
    """Everything running; the Deployment has twenty replicas, and the HPA of the manifest scales it."""
    side = Side()
    side.order(20, 20)
    with controllers(cluster), metrics_server(cluster, side.value):
        start_with_twenty(cluster)
        yield side
        take_away(cluster)
    side.close()


def take_away(cluster: Cluster) -> None:
    """Both of them, and the pods."""
    cluster.call("DELETE", HPA_PATH)
    cluster.call("DELETE", DEPLOYMENT)


def seen(cluster: Cluster) -> tuple[str, int]:
    """The metric per replica that the HPA saw last, and the count that it made of it."""
    status = cluster.call("GET", HPA_PATH)["status"]
    metrics = status.get("currentMetrics") or [{}]
    value = metrics[0].get("external", {}).get("current", {}).get("averageValue", "")
    return value, status.get("desiredReplicas", -1)


def behave(cluster: Cluster, behavior: dict[str, Any] | None) -> None:
    cluster.call("PATCH", HPA_PATH, {"spec": {"behavior": behavior}})


def settle_at(cluster: Cluster, side: Side, replicas: int) -> None:
    """Bring Deployment, command and HPA to this count, from whatever an earlier test left."""
    side.order(replicas, replicas)
    cluster.call("PATCH", f"{DEPLOYMENT}/scale", {"spec": {"replicas": replicas}})
    cluster.await_that(
        f"{replicas} replicas, and the HPA content",
        lambda: (
            cluster.call("GET", DEPLOYMENT)["status"].get("replicas") == replicas and seen(cluster) == ("1", replicas)
        ),
    )


def followed(cluster: Cluster, replicas: int, path: str = DEPLOYMENT) -> bool:
    return bool(
        cluster.await_that(f"{replicas} replicas", lambda: cluster.call("GET", path)["spec"]["replicas"] == replicas)
    )


def says(cluster: Cluster, condition: str, reason: str) -> bool:
    """Whether a condition of the HPA has this reason."""
    conditions = cluster.call("GET", HPA_PATH)["status"]["conditions"]
    return any(c["type"] == condition and c["reason"] == reason for c in conditions)
