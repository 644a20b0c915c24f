"""`harmony actuate kubernetes` on a real API server, as the account and with the rights that the manifest gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from agents.records import Target
from infra.actuate.actuator import Actuator, NotApplied, Overtaken
from infra.actuate.conformance import ABILITIES, Ability, run_kit
from infra.actuate.conformance_desk import DeskSubject
from infra.actuate.desk import Desk
from infra.actuate.kubernetes import COST, Kubernetes, rivals
from infra.actuate.kubernetes_api import Access, KubernetesApi
from tests.cluster.cluster import Cluster, Refused

LABELS = {"app": "w"}
POD = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
LWS_GROUP, LWS_PLURAL = "leaderworkerset.x-k8s.io", "leaderworkersets"


def path_of(target: Target) -> str:
    plural = f"{target.kind.lower()}s"
    return f"/apis/{target.api_version}/namespaces/{target.namespace}/{plural}/{target.name}"


def scalable(target: Target, replicas: int) -> dict[str, Any]:
    """An object of this kind; a Deployment is paused, so that no controller makes pods of it."""
    spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": POD}
    spec |= {"paused": True} if target.kind == "Deployment" else {"serviceName": "w"}
    meta = {"name": target.name, "namespace": target.namespace}
    return {"apiVersion": target.api_version, "kind": target.kind, "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def access(cluster: Cluster) -> Access:
    """As the actuator's pod has it."""
    return Access(cluster.url, cluster.token_of("harmony", "harmony-actuator"), cluster.ca_file)


@pytest.fixture
async def api(access: Access) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(access) as made:
        yield made


class RealWorld:
    """A world of the conformance kit: Deployments of the real API server, seen and set as the actuator's account."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"answers"}

    def __init__(self, cluster: Cluster, access: Access) -> None:
        self._cluster, self._access = cluster, access
        self._made: list[str] = []

    async def open(self, replicas: Mapping[str, int]) -> None:
        self._api = await KubernetesApi(self._access).__aenter__()
        for workload, count in replicas.items():
            self._cluster.create(scalable(self._target(workload), count))
            self._made.append(workload)

    def actuator(self, clock: Callable[[], int]) -> Actuator:
        return Kubernetes(self._api)

    async def settle(self, desk: Desk) -> None:
        pass

    async def replicas(self, workload: str) -> int:
        return int(self._cluster.call("GET", path_of(self._target(workload)))["spec"]["replicas"])

    async def change(self, workload: str, replicas: int) -> None:
        self._cluster.call("PATCH", f"{path_of(self._target(workload))}/scale", {"spec": {"replicas": replicas}})

    async def close(self) -> None:
        await self._api.__aexit__()
        for workload in self._made:
            self._cluster.call("DELETE", path_of(self._target(workload)))
        self._made = []

    @staticmethod
    def _target(workload: str) -> Target:
        return Target("apps/v1", "Deployment", "prod", workload)


def test_the_conformance_kit_passes_on_the_real_scale_subresource(cluster: Cluster, access: Access) -> None:
    results = run_kit(lambda: DeskSubject(RealWorld(cluster, access)), runs=3)
    assert [r for r in results if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in results) > 20


@pytest.fixture
def lws(cluster: Cluster) -> None:
    """A kind of the LeaderWorkerSet's name with a scale subresource: the real controller is not among our tools."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": LWS_PLURAL, "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    spec = {"group": LWS_GROUP, "scope": "Namespaced", "names": names}
    spec["versions"] = [{**version, "subresources": {"scale": scale, "status": {}}}]  # type: ignore[assignment]
    meta = {"name": f"{LWS_PLURAL}.{LWS_GROUP}"}
    with suppress(Refused):
        cluster.create(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": meta,
                "spec": spec,
            }
        )
    cluster.await_that("the kind is served", lambda: cluster.call("GET", f"/apis/{LWS_GROUP}/v1/{LWS_PLURAL}"))


@pytest.mark.parametrize(
    "target",
    [
        Target("apps/v1", "Deployment", "prod", "d"),
        Target("apps/v1", "StatefulSet", "prod", "s"),
        Target(f"{LWS_GROUP}/v1", "LeaderWorkerSet", "prod", "l"),
    ],
    ids=lambda t: t.kind,
)
async def test_each_kind_is_scaled_at_the_version_that_was_read(
    cluster: Cluster, lws: None, api: KubernetesApi, target: Target
) -> None:
    cluster.create(scalable(target, 3))
    before = await api.scale(target)
    assert before.replicas == 3
    await api.set_scale(target, 7, before.version)
    assert (await api.scale(target)).replicas == (await api.status(target)).desired == 7
    with pytest.raises(Overtaken):
        await api.set_scale(target, 8, before.version)
    assert (await api.scale(target)).replicas == 7
    managers = {f["manager"] for f in cluster.call("GET", path_of(target))["metadata"]["managedFields"]}
    assert "harmony" in managers
    cluster.call("DELETE", path_of(target))


async def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(cluster: Cluster, access: Access) -> None:
    target = Target("apps/v1", "Deployment", "prod", "dry")
    cluster.create(scalable(target, 3))
    async with KubernetesApi(access, dry_run=True) as api:
        before = await api.scale(target)
        await api.set_scale(target, 9, before.version)
        with pytest.raises(NotApplied) as refused:
            await api.set_scale(target, -1, before.version)
        assert refused.value.refused
        assert refused.value.sure
    assert cluster.call("GET", path_of(target))["spec"]["replicas"] == 3
    cluster.call("DELETE", path_of(target))


async def test_the_role_suffices_for_scaling_and_for_nothing_else(
    cluster: Cluster, access: Access, api: KubernetesApi
) -> None:
    target = Target("apps/v1", "Deployment", "prod", "mine")
    cluster.create(scalable(target, 3))
    assert access.token_file is not None

    def status(method: str, path: str, body: Any = None) -> int:
        try:
            cluster.call(method, path, body, token=access.token_file)
        except Refused as refusal:
            return refusal.code
        return 200

    await api.set_scale(target, 4, (await api.scale(target)).version)
    assert await rivals(api, [target]) == []
    assert await api.pods("prod", "app=w") == []
    assert status("DELETE", path_of(target)) == 403
    assert status("PATCH", path_of(target), {"spec": {"replicas": 1}}) == 403
    assert status("GET", "/api/v1/namespaces/prod/secrets") == 403
    cluster.namespace("elsewhere")
    with pytest.raises(NotApplied, match=r"rbac\.yaml") as other:
        await api.scale(Target("apps/v1", "Deployment", "elsewhere", "x"))
    assert other.value.refused
    cluster.call("DELETE", path_of(target))


async def test_an_hpa_on_the_same_target_is_found(cluster: Cluster, api: KubernetesApi) -> None:
    target = Target("apps/v1", "Deployment", "prod", "shared")
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shared"},
        "maxReplicas": 3,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            }
        ],
    }
    meta = {"name": "shared", "namespace": "prod"}
    cluster.create({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec})
    assert any("shared" in found for found in await rivals(api, [target]))
    cluster.call("DELETE", "/apis/autoscaling/v2/namespaces/prod/horizontalpodautoscalers/shared")


async def test_the_victims_annotation_reaches_the_pod(cluster: Cluster, api: KubernetesApi) -> None:
    meta = {"name": "p", "namespace": "prod", "labels": {"app": "victims"}}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": POD["spec"]})
    await api.annotate_pod("prod", "p", {COST: "-5"})
    assert await api.pods("prod", "app=victims") == [("p", {COST: "-5"})]
    await asyncio.to_thread(cluster.call, "DELETE", "/api/v1/namespaces/prod/pods/p")
