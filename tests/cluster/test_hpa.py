"""A real HPA controller follows our commands one replica at a time, with the behaviour that our manifests give it.

command ─▶ desk ─▶ external scaler (gRPC) ─▶ external metric ─▶ HPA ─▶ /scale. KEDA's operator is not among them: a few
lines stand in for its metrics server (`external_metrics`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from agents.apply_guard import ApplyGuard
from agents.records import Command, Target
from infra.actuate.desk import Desk
from infra.actuate.keda import KedaScaler, Lookup
from infra.actuate.pull import Answers
from tests.cluster.cluster import Cluster, controllers
from tests.cluster.external_metrics import asked_by_grpc, metrics_server
from tests.deploy.tools import ROOT

WORKLOAD, NAME = "prod/llm/chat-70b", "chat-70b"
MANIFESTS = ROOT / "infra/deploy/kubernetes"
HPA: dict[str, Any] = yaml.safe_load((MANIFESTS / "hpa.yaml").read_text())
SCALED = {
    path.name: next(d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == "ScaledObject")
    for path in sorted(MANIFESTS.glob("scaledobject-*.yaml"))
}
HPA_PATH = f"/apis/autoscaling/v2/namespaces/prod/horizontalpodautoscalers/{NAME}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/prod/deployments/{NAME}"


@dataclass
class Side:
    """Our side: a desk that commands are handed to, and its external scaler, on a loop of their own."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    now_ms: int = 1_763_636_400_000
    sequence: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.desk = Desk(Answers("keda"), ApplyGuard(), lambda: self.now_ms)

        async def start() -> KedaScaler:
            scaler = KedaScaler(Lookup(self.desk.answer, lambda: self.desk.targets), port=0)
            await scaler.start()
            return scaler

        self.scaler = asyncio.run_coroutine_threadsafe(start(), self.loop).result(60)

    def order(self, replicas: int, expected: int) -> None:
        """A new command with a lease of ten minutes."""
        self.sequence += 1
        target = Target("apps/v1", "Deployment", "prod", NAME)
        command = Command(
            f"c{self.sequence}", f"d{self.sequence}", WORKLOAD, target, replicas, expected, 1, self.sequence,
            self.now_ms, self.now_ms + 600_000, "chance_constrained", 0.001, 0.01,
        )  # fmt: skip
        event = asyncio.run_coroutine_threadsafe(self.desk.handle(command), self.loop).result(60)
        assert self.desk.answer(WORKLOAD) == replicas, event

    def value(self) -> float | None:
        return asked_by_grpc(self.scaler.port, WORKLOAD)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.scaler.stop(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture(scope="module")
def side(cluster: Cluster) -> Iterator[Side]:
    """Everything running; the Deployment has twenty replicas, and the HPA of the manifest scales it."""
    labels = {"app": NAME}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"replicas": 20, "selector": {"matchLabels": labels}, "template": pod}
    meta = {"name": NAME, "namespace": "prod"}
    made = Side()
    made.order(20, 20)
    with controllers(cluster), metrics_server(cluster, made.value):
        cluster.create({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
        cluster.await_that("twenty pods", lambda: cluster.call("GET", DEPLOYMENT)["status"].get("replicas") == 20)
        cluster.create(HPA)
        yield made
    made.close()
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


def followed(cluster: Cluster, replicas: int) -> bool:
    return bool(
        cluster.await_that(
            f"{replicas} replicas", lambda: cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == replicas
        )
    )


BEHAVIORS = {"hpa.yaml": HPA["spec"]["behavior"]} | {
    name: d["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] for name, d in SCALED.items()
}


@pytest.mark.parametrize("name", BEHAVIORS)
def test_20_becomes_21_and_20_becomes_19(cluster: Cluster, side: Side, name: str) -> None:
    behave(cluster, BEHAVIORS[name])
    for wanted in (21, 19):
        settle_at(cluster, side, 20)
        side.order(wanted, 20)
        assert followed(cluster, wanted)


@pytest.mark.parametrize(("wanted", "per_replica"), [(21, "1050m"), (19, "950m")])
def test_without_our_tolerance_the_hpa_ignores_both(
    cluster: Cluster, side: Side, wanted: int, per_replica: str
) -> None:
    """What the manifests guard against; shown, so that the test above could fail."""
    behavior = deepcopy(HPA["spec"]["behavior"])
    for direction in behavior.values():
        direction["tolerance"] = None
    settle_at(cluster, side, 20)
    behave(cluster, behavior)
    side.order(wanted, 20)
    assert cluster.await_that("the HPA sees the new value", lambda: seen(cluster)[0] == per_replica)
    assert seen(cluster) == (per_replica, 20)
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 20
    behave(cluster, HPA["spec"]["behavior"])
    assert followed(cluster, wanted)


def test_with_the_default_window_a_scale_down_waits(cluster: Cluster, side: Side) -> None:
    behavior = deepcopy(HPA["spec"]["behavior"])
    behavior["scaleDown"]["stabilizationWindowSeconds"] = None
    behave(cluster, BEHAVIORS["hpa.yaml"])
    settle_at(cluster, side, 20)
    behave(cluster, behavior)
    side.order(10, 20)
    assert cluster.await_that("the HPA sees the new value", lambda: seen(cluster)[0] == "500m")

    def held_back() -> bool:
        conditions = cluster.call("GET", HPA_PATH)["status"]["conditions"]
        return any(c["type"] == "AbleToScale" and c["reason"] == "ScaleDownStabilized" for c in conditions)

    assert cluster.await_that("the HPA says that it waits", held_back)
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 20
    behave(cluster, BEHAVIORS["hpa.yaml"])
    assert followed(cluster, 10)


def test_when_the_lease_runs_out_the_hpa_leaves_the_count_alone(cluster: Cluster, side: Side) -> None:
    behave(cluster, BEHAVIORS["hpa.yaml"])
    settle_at(cluster, side, 20)
    side.now_ms += 600_000
    assert side.value() is None

    def in_doubt() -> bool:
        conditions = cluster.call("GET", HPA_PATH)["status"]["conditions"]
        return any(c["type"] == "ScalingActive" and c["reason"] == "FailedGetExternalMetric" for c in conditions)

    assert cluster.await_that("the HPA says that it has no metric", in_doubt)
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 20
    side.order(21, 20)
    assert followed(cluster, 21)
