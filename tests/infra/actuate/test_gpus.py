"""GPUs that the pods of a target ask for, and what is said where the declaration names another number."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agents.records import Target
from infra.actuate.actuator import NotApplied
from infra.actuate.kubernetes import FactsReader, gpu_difference
from infra.actuate.kubernetes_api import Access, KubernetesApi, gpus_of_claim, gpus_of_pod, pods_of_replica
from infra.operate import doctor
from infra.settings.load import load_settings
from tests.infra.actuate.api_server import ApiServer, Thing, serving

W = Target("apps/v1", "Deployment", "prod", "w")
GPU, MIG, MIG_ME = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb.me"


def container(restart: str | None = None, **limits: str) -> dict[str, Any]:
    named = {name.replace("__", "/").replace("_", "."): number for name, number in limits.items()}
    return {"resources": {"limits": named}} | ({"restartPolicy": restart} if restart else {})


def pod(**parts: Any) -> dict[str, Any]:
    return {"spec": parts}


def deployment(*containers: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"template": pod(containers=list(containers), initContainers=[before] if before else [])}


def group(worker: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"leaderWorkerTemplate": {"workerTemplate": pod(containers=[worker]), **more}}


CPUS, ONE, TWO, EIGHT = (
    container(cpu="8", memory="64Gi"), *(container(nvidia_com__gpu=number) for number in ("1", "2", "8"))
)  # fmt: skip
SIDECAR = container("Always", nvidia_com__gpu="1")
BOTH = {"resources": {"requests": {GPU: "4"}, "limits": {GPU: "4"}}}
PARTS = {"resources": {"limits": {MIG: "3", MIG_ME: "1"}}}
SPECS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("NVIDIA", deployment(TWO), {GPU: 2}),
    ("AMD", deployment(container(amd_com__gpu="8")), {"amd.com/gpu": 8}),
    ("requests alone", deployment({"resources": {"requests": {GPU: "4"}}}), {GPU: 4}),
    ("requests and limits are one", deployment(BOTH), {GPU: 4}),
    ("parts of a GPU", deployment(PARTS), {MIG: 3, MIG_ME: 1}),
    ("two containers", deployment(TWO, ONE), {GPU: 3}),
    ("a step before", deployment(TWO, before=ONE), {GPU: 2}),
    ("a larger step before", deployment(ONE, before=TWO), {GPU: 2}),
    ("a sidecar", deployment(TWO, before=SIDECAR), {GPU: 3}),
    ("CPUs", deployment(CPUS), {}),
    ("nothing said", deployment({}), {}),
    ("a group of four", group(EIGHT, size=4), {GPU: 32}),
    ("a group of one", group(EIGHT), {GPU: 8}),
    ("a leader without GPUs", group(EIGHT, size=3, leaderTemplate=pod(containers=[CPUS])), {GPU: 16}),
    ("another kind of object", {"predictor": {}}, {}),
]


@pytest.mark.parametrize(("spec", "asked"), [case[1:] for case in SPECS], ids=[case[0] for case in SPECS])
async def test_gpus_of_a_replica(
    spec: dict[str, Any], asked: dict[str, int], server: ApiServer, api: KubernetesApi
) -> None:
    server.thing("prod", "w").spec = spec
    assert await api.gpus(W) == asked


def device(name: str, **more: Any) -> dict[str, Any]:
    return {"deviceClassName": name, **more}


def exactly(name: str, **more: Any) -> dict[str, Any]:
    return {"name": "r", "exactly": device(name, **more)}


def either(*devices: dict[str, Any]) -> dict[str, Any]:
    return {"name": "r", "firstAvailable": list(devices)}


NVIDIA, CARD = "gpu.nvidia.com", "rdma.example.com"
CLAIMS: list[tuple[str, list[dict[str, Any]], dict[str, int] | None]] = [
    ("one", [exactly(NVIDIA)], {NVIDIA: 1}),
    ("a count", [exactly(NVIDIA, count=4)], {NVIDIA: 4}),
    ("two requests", [exactly(NVIDIA, count=4), exactly(NVIDIA)], {NVIDIA: 5}),
    ("the form of v1beta1", [{"name": "r", **device("gpu.amd.com", count=2)}], {"gpu.amd.com": 2}),
    ("parts of a GPU", [exactly("mig.nvidia.com", count=2)], {"mig.nvidia.com": 2}),
    ("network cards", [exactly(CARD, count=8)], {}),
    ("a GPU and a card", [exactly(CARD), exactly(NVIDIA)], {NVIDIA: 1}),
    ("either, as many", [either(device(NVIDIA, count=2), device("big-gpu", count=2))], {NVIDIA: 2}),
    ("either, other numbers", [either(device(NVIDIA, count=2), device("big-gpu"))], None),
    ("all of a node", [exactly(NVIDIA, allocationMode="All")], None),
]


@pytest.mark.parametrize(("requests", "asked"), [case[1:] for case in CLAIMS], ids=[case[0] for case in CLAIMS])
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_gpus_of_claims(
    requests: list[dict[str, Any]], asked: dict[str, int] | None, version: str, server: ApiServer, api: KubernetesApi
) -> None:
    server.claims_version = version
    server.claim_templates["gpus"] = {"devices": {"requests": requests}}
    claims = [{"name": "own", "resourceClaimTemplateName": "gpus"}, {"name": "all", "resourceClaimName": "shared"}]
    server.thing("prod", "w").spec = {"template": pod(containers=[ONE], resourceClaims=claims)}
    if asked is None:
        with pytest.raises(NotApplied, match="resource claim template gpus name no number"):
            await api.gpus(W)
    else:
        assert await api.gpus(W) == {GPU: 1, **asked}


_COUNTS = st.lists(st.integers(0, 16), max_size=4)


@given(together=_COUNTS, before=_COUNTS, beside=_COUNTS, size=st.integers(1, 9))
def test_a_pod_asks_for_what_runs_at_once_and_a_group_for_all_of_its_pods(
    together: list[int], before: list[int], beside: list[int], size: int
) -> None:
    spec = {
        "containers": [container(nvidia_com__gpu=str(n)) for n in together],
        "initContainers": [
            *(container(nvidia_com__gpu=str(n)) for n in before),
            *(container("Always", nvidia_com__gpu=str(n)) for n in beside),
        ],
    }
    one = gpus_of_pod(spec, {}).total()
    assert one == max(sum(together) + sum(beside), *before, *beside, 0)
    group = {"leaderWorkerTemplate": {"size": size, "workerTemplate": {"spec": spec}}}
    assert sum(gpus_of_pod(p, {}).total() for p in pods_of_replica(group)) == size * one


@pytest.mark.parametrize("quantity", ["1500m", "many", None, [1]])
async def test_no_whole_number_of_gpus_is_said_in_words(quantity: Any, server: ApiServer, api: KubernetesApi) -> None:
    server.thing("prod", "w").spec = {"template": pod(containers=[{"resources": {"limits": {GPU: quantity}}}])}
    with pytest.raises(NotApplied, match="no whole number"):
        await api.gpus(W)


@pytest.mark.parametrize("spec", [{"template": None}, {"template": {}}, {"leaderWorkerTemplate": {"size": "x"}}])
async def test_an_object_of_another_shape_is_said_in_words(
    spec: dict[str, Any], server: ApiServer, api: KubernetesApi
) -> None:
    server.thing("prod", "w").spec = spec
    with pytest.raises(NotApplied, match="no pod template"):
        await api.gpus(W)


def test_a_claim_of_nothing_asks_for_nothing() -> None:
    assert gpus_of_claim([]) == Counter()


def test_a_difference_names_both_numbers_and_the_remedy() -> None:
    told = gpu_difference(W, 2, {GPU: 4})
    assert told == (
        "a replica of Deployment prod/w asks for 4 nvidia.com/gpu, but gpus_per_replica is 2, which budgets and costs "
        "count: set gpus_per_replica to 4, or change the target"
    )
    assert gpu_difference(W, 4, {GPU: 3, "amd.com/gpu": 1}) is None
    assert gpu_difference(W, 1, {}) is None, "devices may reach a pod in another way"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving() as made:
        yield made


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(Access(server.url)) as made:
        yield made


def changed(thing: Thing, gpus: str) -> None:
    thing.spec = {"template": pod(containers=[container(nvidia_com__gpu=gpus)])}
    thing.generation += 1


async def test_the_facts_reader_reports_each_difference_once_and_goes_on_counting_what_is_declared(
    server: ApiServer, api: KubernetesApi
) -> None:
    facts: list[str] = []
    reader = FactsReader(
        api, lambda: {"w": W}, lambda: 0, lambda workload, _: facts.append(workload), lambda *_: None, {"w": 2}
    )
    thing, told = server.thing("prod", "w"), []
    for gpus in ("2", "4", "4", "8", "2"):
        if thing.spec != {"template": pod(containers=[container(nvidia_com__gpu=gpus)])}:
            changed(thing, gpus)
        with capture_logs() as logs:
            await reader.look()
        told.append([str(entry["reason"])[:48] for entry in logs if entry["event"] == "gpus_per_replica"])
    asks = "a replica of Deployment prod/w asks for {} nvidia"
    assert told == [[], [asks.format(4)[:48]], [], [asks.format(8)[:48]], []]
    assert facts == ["w"] * 5
    reads = sum(path.endswith("deployments/w") for _, path, _ in server.requests)
    assert reads == 5 + 4, "the specification is read again after a change alone"


async def test_gpus_that_cannot_be_read_stop_no_facts(server: ApiServer, api: KubernetesApi) -> None:
    claims = [{"name": "own", "resourceClaimTemplateName": "gpus"}]
    server.thing("prod", "w").spec = {"template": pod(containers=[], resourceClaims=claims)}
    server.deny.add("CLAIMS")
    facts: list[str] = []
    reader = FactsReader(api, lambda: {"w": W}, lambda: 0, lambda w, _: facts.append(w), lambda *_: None, {"w": 2})
    with capture_logs() as logs:
        await reader.look()
        await reader.look()
    assert facts == ["w", "w"]
    (entry,) = logs
    assert "rbac.yaml" in entry["reason"]


def findings(tmp_path: Path, *gpus: int) -> list[doctor.Finding]:
    config = tmp_path / "harmony.yaml"
    target = "{apiVersion: apps/v1, kind: Deployment, namespace: prod, name: w}"
    workloads = ", ".join(f"{{id: w{n}, gpus_per_replica: {count}, target: {target}}}" for n, count in enumerate(gpus))
    config.write_text(f"workloads: [{workloads}]\n", encoding="utf-8")
    return list(doctor._target_gpus(load_settings(config, environ={})))


async def test_the_doctor_compares_in_a_cluster_and_asks_nobody_elsewhere(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    def examined(*gpus: int) -> list[doctor.Finding]:
        return findings(tmp_path, *gpus)

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert await asyncio.to_thread(examined, 2) == []
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "in-cluster")
    monkeypatch.setattr(doctor, "find_access", lambda: Access(server.url))
    changed(server.thing("prod", "w"), "4")
    (good,) = await asyncio.to_thread(examined, 4)
    assert (good.status, good.remedy) == ("ok", "")
    (wrong,) = await asyncio.to_thread(examined, 4, 2)
    assert wrong.status == "note"
    assert "w1: a replica of Deployment prod/w asks for 4 nvidia.com/gpu, but gpus_per_replica is 2" in wrong.detail
    server.deny.add("GET")
    (unread,) = await asyncio.to_thread(examined, 4)
    assert (unread.status, "HTTP 403" in unread.detail, "rbac.yaml" in unread.remedy) == ("note", True, True)
    assert await asyncio.to_thread(examined) == []
