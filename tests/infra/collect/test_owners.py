"""From pods to the workloads that own them: names, owner references, and exporters that measure for others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.mapping.owners import OWNER_SERIES, PodOwners, owner_label
from tests.infra.collect.samples import TS_MS, reader, readings_of


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
    names = PodOwners()
    for pod in pods:
        names.add_pod("prod", pod)
    assert [names.owner("prod", pod) for pod in pods] == owners


def test_a_pod_of_another_namespace_decides_nothing() -> None:
    names = PodOwners()
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


def reference(series: str, owned: str, kind: str, name: str, **labels: str) -> str:
    of = {"kube_pod_owner": "pod", "kube_replicaset_owner": "replicaset", "kube_job_owner": "job_name"}[series]
    named = {"namespace": "prod", of: owned, "owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}
    return f"{series}{{{written(named | labels)}}} 1\n"


def written(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


@dataclass
class Controllers:
    """Makes pods and owner references as the controllers of Kubernetes do: names are cut where they get too long."""

    random: random.Random
    pods: dict[str, str] = field(default_factory=dict)
    references: list[str] = field(default_factory=list)

    def suffix(self, length: int = 5) -> str:
        return "".join(self.random.choices("bcdfghjklmnpqrstvwxz2456789", k=length))

    def pod(self, name: str, workload: str, kind: str, owner: str) -> None:
        if name not in self.pods:
            self.pods[name] = workload
            self.references.append(reference("kube_pod_owner", name, kind, owner))

    def generated(self, base: str) -> str:
        return f"{base}-"[:58] + self.suffix()

    def make(self, kind: str, name: str, replicas: int) -> None:
        """One workload with its pods; one that has the name of a pod that is there is not made."""
        if kind == "Deployment":
            replica_set = f"{name}-{self.suffix(9)}"
            self.references.append(reference("kube_replicaset_owner", replica_set, "Deployment", name))
            for _ in range(replicas):
                self.pod(self.generated(replica_set), name, "ReplicaSet", replica_set)
        elif kind == "ReplicaSet":
            self.references.append(reference("kube_replicaset_owner", name, "", ""))
            for _ in range(replicas):
                self.pod(self.generated(name), name, kind, name)
        elif kind == "StatefulSet":
            for ordinal in range(replicas):
                self.pod(f"{name}-{ordinal}", name, kind, name)
        elif kind == "CronJob":
            for run in range(replicas):
                job = f"{name}-{29_543_210 + run}"
                self.references.append(reference("kube_job_owner", job, "CronJob", name))
                self.pod(self.generated(job), name, "Job", job)
        elif kind == "Job":
            self.references.append(reference("kube_job_owner", name, "", ""))
            for index in range(replicas):
                self.pod(self.generated(f"{name}-{index}"), name, kind, name)
        elif kind == "DaemonSet":
            for _ in range(replicas):
                self.pod(self.generated(name), name, kind, name)
        else:
            self.pod(name, name, "", "")


KINDS = ["Deployment", "ReplicaSet", "StatefulSet", "CronJob", "Job", "DaemonSet", "bare"]
# Parts that look like what controllers append.
PARTS = ["chat", "bcdfg", "5d9c7b6f4", "0", "3", "29543210", "1763636400", "a-name-that-makes-the-whole-one-too-long"]
WORKLOADS = st.dictionaries(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(lambda parts: "-".join(["m", *parts])),
    st.tuples(st.sampled_from(KINDS), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


@given(WORKLOADS, st.randoms(use_true_random=False), st.booleans())
def test_owner_references_name_the_workload_whatever_pods_are_called(
    workloads: dict[str, tuple[str, int]], rng: random.Random, apart: bool
) -> None:
    made = Controllers(rng)
    for name, (kind, replicas) in workloads.items():
        made.make(kind, name, replicas)
    lines = list(made.references)
    rng.shuffle(lines)
    by = reader("dcgm")
    if apart:
        # What was concluded from names before is corrected.
        readings_of(devices(*made.pods), by)
        readings_of("".join(lines), by)
        lines = []
    readings = readings_of("".join(lines) + devices(*made.pods), by, TS_MS + 5_000)
    assert [r.workload for r in readings] == [f"prod/{workload}" for workload in made.pods.values()]


def owned_by(pod: str, *lines: str, **labels: str) -> str:
    device = {"gpu": "0", "Hostname": "n", "namespace": "prod", "pod": pod}
    (reading,) = readings_of(f"{''.join(lines)}DCGM_FI_DEV_GPU_UTIL{{{written(device | labels)}}} 1\n", reader())
    return reading.workload.removeprefix("prod/")


DAEMON = "gpu-bcdfg-x2k8p"
MOVED = {"exported_pod": DAEMON, "exported_namespace": "prod"}
REVISION = "c-00003-deployment"


@pytest.mark.parametrize(
    ("pod", "lines", "owner"),
    [
        (DAEMON, [], "gpu"),
        (DAEMON, [reference("kube_pod_owner", DAEMON, "DaemonSet", "gpu-bcdfg")], "gpu-bcdfg"),
        (DAEMON, [reference("kube_pod_owner", DAEMON, "DaemonSet", "gpu-bcdfg", namespace="test")], "gpu"),
        (DAEMON, [reference("kube_pod_owner", DAEMON, "Shard", "s", owner_is_controller="false")], "gpu"),
        (DAEMON, [reference("kube_pod_owner", DAEMON, "<none>", "<none>", owner_is_controller="<none>")], DAEMON),
        (DAEMON, [reference("kube_pod_owner", DAEMON, "DaemonSet", "gpu-bcdfg").replace("} 1", "} NaN")], "gpu"),
        # Prometheus has its own pod and namespace in these labels.
        (
            DAEMON,
            [reference("kube_pod_owner", "ksm-0", "DaemonSet", "gpu-bcdfg", namespace="kube", **MOVED)],
            "gpu-bcdfg",
        ),
        # Without the series of ReplicaSets or Jobs names decide between the two.
        (DAEMON, [reference("kube_pod_owner", DAEMON, "ReplicaSet", "gpu-bcdfg")], "gpu"),
        ("e-29543210-x2k8p", [reference("kube_pod_owner", "e-29543210-x2k8p", "Job", "e-29543210")], "e"),
        (f"{REVISION}-5d9c7b6f4-x2k8p", [
            reference("kube_pod_owner", f"{REVISION}-5d9c7b6f4-x2k8p", "ReplicaSet", f"{REVISION}-5d9c7b6f4"),
            reference("kube_replicaset_owner", f"{REVISION}-5d9c7b6f4", "Deployment", REVISION),
        ], "c"),
        # The workers of a group are in a StatefulSet of their own, of which no series tells the owner.
        ("big-0-1", [reference("kube_pod_owner", "big-0", "StatefulSet", "big"),
                     reference("kube_pod_owner", "big-0-1", "StatefulSet", "big-0")], "big"),
        ("vm-node-7", [reference("kube_pod_owner", "vm-node-7", "Node", "node-7")], "vm-node-7"),
        ("r-gpu-worker-x2k8p", [reference("kube_pod_owner", "r-gpu-worker-x2k8p", "RayCluster", "r")], "r"),
    ],
)  # fmt: skip
def test_owner_references_that_are_there_in_part(pod: str, lines: list[str], owner: str) -> None:
    assert owned_by(pod, *lines) == owner


def test_labels_that_hold_the_owner_win_over_references() -> None:
    line = reference("kube_pod_owner", "big-0-1", "StatefulSet", "big-0")
    assert owned_by("big-0-1", line, leaderworkerset_sigs_k8s_io_name="big") == "big"


def test_the_series_of_owners_are_asked_for_and_are_no_telemetry() -> None:
    by = reader("dcgm")
    assert set(OWNER_SERIES) < set(by.names)
    assert all(by.reads(name) for name in OWNER_SERIES)
    assert readings_of(reference("kube_pod_owner", DAEMON, "DaemonSet", "gpu-bcdfg"), by) == []
    assert by.tally.points == 0
