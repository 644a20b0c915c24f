"""A real HPA controller follows our commands one replica at a time, with the behaviour that our manifests give it.

command ─▶ controller ─▶ external scaler (gRPC) ─▶ external metric ─▶ HPA ─▶ /scale. KEDA's operator is not among them:
a few lines stand in for its metrics server (`external_metrics`).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.hpa import (
    DEPLOYMENT,
    HPA,
    HPA_PATH,
    MANIFESTS,
    behave,
    followed,
    says,
    scaled_by_hpa,
    seen,
    settle_at,
)
from tests.cluster.our_side import NAME, Side
from tests.cluster.targets import path_of, scalable, target_of, tell_groups

SCALED = {
    path.name: next(d for d in yaml.safe_load_all(path.read_text()) if d["kind"] == "ScaledObject")
    for path in sorted(MANIFESTS.glob("scaledobject-*.yaml"))
}


@pytest.fixture(scope="module")
def side(cluster: Cluster) -> Iterator[Side]:
    with scaled_by_hpa(cluster) as made:
        yield made


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
    assert cluster.await_that("the HPA says that it waits", lambda: says(cluster, "AbleToScale", "ScaleDownStabilized"))
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 20
    behave(cluster, BEHAVIORS["hpa.yaml"])
    assert followed(cluster, 10)


def test_when_the_lease_runs_out_the_hpa_leaves_the_count_alone(cluster: Cluster, side: Side) -> None:
    behave(cluster, BEHAVIORS["hpa.yaml"])
    settle_at(cluster, side, 20)
    side.now_ms += 600_000
    assert side.value() is None
    assert cluster.await_that(
        "the HPA says that it has no metric", lambda: says(cluster, "ScalingActive", "FailedGetExternalMetric")
    )
    assert cluster.call("GET", DEPLOYMENT)["spec"]["replicas"] == 20
    side.order(21, 20)
    assert followed(cluster, 21)


@pytest.mark.parametrize("kind", ["StatefulSet", "LeaderWorkerSet"])
def test_the_hpa_follows_on_other_kinds_too(cluster: Cluster, leader_worker_sets: None, side: Side, kind: str) -> None:
    """Pods of the StatefulSet are made by its controller; of the LeaderWorkerSet's groups we tell in its place."""
    target = target_of(kind, NAME)
    behave(cluster, BEHAVIORS["hpa.yaml"])
    side.order(20, 20)
    cluster.create(scalable(target, 20, **({"podManagementPolicy": "Parallel"} if kind == "StatefulSet" else {})))
    reference = {"apiVersion": target.api_version, "kind": kind, "name": NAME}

    def has(replicas: int) -> None:
        if kind == "LeaderWorkerSet":
            tell_groups(cluster, target, created=replicas, ready=0)
        cluster.await_that(
            f"{kind} of {replicas}", lambda: cluster.call("GET", path_of(target))["status"].get("replicas") == replicas
        )

    has(20)
    cluster.call("PATCH", HPA_PATH, {"spec": {"scaleTargetRef": reference}})
    for now, wanted in ((20, 21), (21, 20), (20, 19)):
        has(now)
        cluster.await_that("the HPA is content", lambda: seen(cluster)[0] == "1")
        side.order(wanted, now)
        assert followed(cluster, wanted, path_of(target))
    cluster.call("PATCH", HPA_PATH, {"spec": {"scaleTargetRef": HPA["spec"]["scaleTargetRef"]}})
    cluster.call("DELETE", path_of(target))
