"""From pods to the workloads that own them: names, ambiguous names, and exporters that measure for others."""

from __future__ import annotations

import pytest

from infra.collect.mapping.owners import PodNames, owner_label
from tests.infra.collect.samples import reader, readings_of


@pytest.mark.parametrize(
    ("pods", "owners"),
    [
        (["chat-predictor-00003-deployment-5d9c7b6f4-x2k8p"], ["chat-predictor"]),
        (["eval-29543210-x2k8p", "eval-1763636400-x2k8p"], ["eval", "eval"]),
        (["train-0-x2k8p", "train-1-b7c9d", "train-11-b7c9d"], ["train", "train", "train"]),
        (["sweep-w-0-0-x2k8p", "sweep-w-1-3-b7c9d"], ["sweep-w", "sweep-w"]),
        (["llama-3-x2k8p"], ["llama-3"]),
        (["big-0", "big-0-1", "big-1", "big-1-1"], ["big", "big", "big", "big"]),
        (["llama-3-0", "llama-3-1"], ["llama-3", "llama-3"]),
        (["llama-3", "llama-3-0", "llama-3-1"], ["llama", "llama-3", "llama-3"]),
        (["llama-3-1"], ["llama-3"]),
        (["qwen2-5-0", "qwen2-5-1"], ["qwen2-5", "qwen2-5"]),
        (["app-20260101-7f8d9c6b5-zxcvb"], ["app-20260101"]),
        (["dgd-0-frontend-x2k8p"], ["dgd-0-frontend"]),
    ],
)
def test_owners_of_pods_that_are_seen_together(pods: list[str], owners: list[str]) -> None:
    names = PodNames()
    for pod in pods:
        names.add_pod("prod", pod)
    assert [names.owner("prod", pod) for pod in pods] == owners


def test_a_pod_of_another_namespace_decides_nothing() -> None:
    names = PodNames()
    names.add_pod("test", "big-0")
    assert names.owner("prod", "big-0-1") == "big-0"


def test_labels_that_hold_the_owner_win() -> None:
    assert owner_label({"label_leaderworkerset_sigs_k8s_io_name": "big"}) == "big"
    assert owner_label({"k8s_deployment_name": "chat-00002-deployment"}) == "chat"
    assert owner_label({"serving_knative_dev_service": "chat", "k8s_deployment_name": "other"}) == "chat"
    assert owner_label({"app": "x"}) is None
    text = (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n",namespace="p",pod="x-1",leaderworkerset_sigs_k8s_io_name="big"} 9\n'
    )
    (reading,) = readings_of(text, reader("dcgm"))
    assert reading.workload == "p/big"


def devices(*pods: str, **labels: str) -> str:
    target = "".join(f',{name}="{value}"' for name, value in labels.items())
    return "".join(
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}",Hostname="n"{target}{own}}} {n}\n'
        for n, own in enumerate(f',exported_pod="{p}",exported_namespace="prod"' if p else "" for p in pods)
    )


@pytest.mark.parametrize(
    "target",
    [
        {"pod": "dcgm-exporter-x7k2p", "namespace": "gpu-operator", "container": "main"},
        {"pod": "gpu-metrics-x7k2p", "namespace": "monitoring", "container": "nvidia-dcgm-exporter"},
        {"pod": "gpu-metrics-x7k2p", "namespace": "monitoring", "container": "main"},
    ],
)
def test_an_idle_device_is_not_the_workload_of_its_exporter(target: dict[str, str]) -> None:
    by = reader("dcgm")
    readings = readings_of(devices("", "chat-5d9c7b6f4-x2k8p", **target, instance="10.0.0.9:9400"), by)
    assert [(r.workload, r.source) for r in readings] == [("prod/chat", "n/1")]
    assert [reason for _, reason in by.tally.unplaced] == [
        "the only pod named is the exporter's own, not one that uses the device"
    ]


def test_an_exporter_that_knows_no_pods_names_no_workload_but_a_rule_may() -> None:
    text = devices("", "", pod="nvidia-gpu-exporter-x7k2p", namespace="monitoring")
    assert readings_of(text, reader("dcgm")) == []
    assert {r.workload for r in readings_of(text, reader("dcgm", workload="node/{Hostname}"))} == {"node/n"}
    declared = reader("dcgm", declared={"all": {"pod": "nvidia-gpu-exporter-*"}})
    assert {r.workload for r in readings_of(text, declared)} == {"all"}


def replicas(**sets: int) -> str:
    return "".join(
        f'kube_statefulset_replicas{{namespace="p",statefulset="{name.replace("_", "-")}"}} {n}\n'
        f'kube_statefulset_status_replicas{{namespace="p",statefulset="{name.replace("_", "-")}"}} {n}\n'
        f'kube_statefulset_status_replicas_ready{{namespace="p",statefulset="{name.replace("_", "-")}"}} {n}\n'
        for name, n in sets.items()
    )


def test_sets_of_groups_are_no_workloads_also_while_they_are_removed() -> None:
    by = reader("kube-statefulset")
    assert {r.workload for r in readings_of(replicas(big=2, big_0=3, big_1=3, other_1=1), by)} == {"p/big", "p/other-1"}
    assert {r.workload for r in readings_of(replicas(big=1, big_0=3, big_1=3), by, 1_763_636_420_000)} == {"p/big"}
    assert {r.workload for r in readings_of(replicas(llama=1, llama_3=2), reader("kube-statefulset"))} == {
        "p/llama",
        "p/llama-3",
    }


def test_the_revisions_of_a_service_are_one_workload() -> None:
    text = "".join(
        f'{name}{{namespace="p",deployment="chat-0000{n}-deployment"}} {n}\n'
        for n in (1, 2)
        for name in (
            "kube_deployment_spec_replicas", "kube_deployment_status_replicas", "kube_deployment_status_replicas_ready"
        )
    )  # fmt: skip
    (reading,) = readings_of(text, reader("kube"))
    assert (reading.workload, reading.values["replicas_ready"]) == ("p/chat", 3.0)
