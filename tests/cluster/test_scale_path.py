"""`harmony actuate kubernetes` on a real API server, as the account and with the rights that the manifest gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agents.records import Target
from infra.actuate.actuator import Actuator, NotApplied, Overtaken, ReplicaChange
from infra.actuate.conformance.kit import ABILITIES, Ability
from infra.actuate.conformance.run import run_kit
from infra.actuate.conformance.subjects import ControllerSubject
from infra.actuate.controller import CommandController
from infra.actuate.kubernetes import COST, FactsReader, Kubernetes, rivals
from infra.actuate.kubernetes_api import Access, KubernetesApi, Status
from streams.records.facts import FleetFacts
from tests.cluster.cluster import Cluster, Refused
from tests.cluster.targets import POD, VERSIONS, path_of, scalable, target_of, tell_groups

KINDS = list(VERSIONS)


def scalable_alone(target: Target, replicas: int) -> dict[str, Any]:
    """A Deployment is paused, so that no controller makes pods of it."""
    return scalable(target, replicas, **({"paused": True} if target.kind == "Deployment" else {}))


@pytest.fixture(scope="module")
def access(cluster: Cluster) -> Access:
    """As the actuator's pod has it."""
    return Access(cluster.url, cluster.token_of("harmony", "harmony-actuator"), cluster.ca_file)


@pytest.fixture
async def api(access: Access) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(access) as made:
        yield made


class OnKind(Kubernetes):
    """The kit's commands name Deployments; here each is carried out on the object of that name of another kind."""

    def __init__(self, api: KubernetesApi, kind: str) -> None:
        super().__init__(api)
        self._kind = kind

    async def observe(self, workload: str, target: Target, expected: int | None, in_force: int | None) -> int:
        return await super().observe(workload, target_of(self._kind, target.name), expected, in_force)

    async def apply(self, change: ReplicaChange) -> str:
        return await super().apply(replace(change, target=target_of(self._kind, change.target.name)))


class RealWorld:
    """A world of the conformance kit: objects of the real API server, seen and set as the actuator's account."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"answers"}

    def __init__(self, cluster: Cluster, access: Access, kind: str) -> None:
        self._cluster, self._access, self._kind = cluster, access, kind
        self._made: list[str] = []

    async def open(self, replicas: Mapping[str, int]) -> None:
        self._api = await KubernetesApi(self._access).__aenter__()
        for workload, count in replicas.items():
            self._cluster.create(scalable_alone(self._target(workload), count))
            self._made.append(workload)

    def actuator(self, clock: Callable[[], int]) -> Actuator:
        return OnKind(self._api, self._kind)

    async def settle(self, controller: CommandController) -> None:
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

    def _target(self, workload: str) -> Target:
        return target_of(self._kind, workload)


@pytest.mark.parametrize("kind", KINDS)
def test_the_conformance_kit_passes_on_the_real_scale_subresource(
    cluster: Cluster, leader_worker_sets: None, access: Access, kind: str
) -> None:
    results = run_kit(
        lambda: ControllerSubject(RealWorld(cluster, access, kind)), runs=3 if kind == "Deployment" else 1
    )
    assert [r for r in results if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in results) > 20


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_scaled_at_the_version_that_was_read(
    cluster: Cluster, leader_worker_sets: None, api: KubernetesApi, kind: str
) -> None:
    target = target_of(kind, "each")
    cluster.create(scalable_alone(target, 3))
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


async def test_of_a_leader_worker_set_groups_are_counted(
    cluster: Cluster, leader_worker_sets: None, api: KubernetesApi
) -> None:
    target = target_of("LeaderWorkerSet", "groups")
    cluster.create(scalable(target, 3))
    untold = await api.status(target)
    assert untold._replace(generation=0) == Status(desired=3, ready=0, existing=0), "as long as nobody has told"
    tell_groups(cluster, target, created=5, ready=2)
    facts: list[FleetFacts] = []
    reader = FactsReader(api, lambda: {"w": target}, lambda: 1_000, lambda _w, f: facts.append(f), lambda *_: None)
    await reader.look()
    assert facts == [FleetFacts(1_000, 2, 1, 2, 3)], "2 ready, 1 pending, 2 draining, 3 wanted"
    assert (await api.scale(target)).selector == "app=w,worker-index=0", "of the leaders, as its definition says"
    cluster.call("DELETE", path_of(target))


async def test_a_dry_run_is_checked_by_the_server_and_changes_nothing(cluster: Cluster, access: Access) -> None:
    target = Target("apps/v1", "Deployment", "prod", "dry")
    cluster.create(scalable_alone(target, 3))
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
    cluster.create(scalable_alone(target, 3))
    assert access.token_file is not None

    def status(method: str, path: str, body: Any = None) -> int:
        try:
            cluster.call(method, path, body, token=access.token_file)
        except Refused as refusal:
            return refusal.code
        return 200

    await api.set_scale(target, 4, (await api.scale(target)).version)
    assert await rivals(api, [target]) == []
    assert await api.pods("prod", "app=nobody") == []
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
