"""From labels to workloads and sources."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra.collect.mapping.owners import PodOwners
from infra.collect.mapping.profiles import shipped_profiles
from infra.collect.mapping.schema import WorkloadRule
from infra.collect.mapping.workloads import Identities, Identity, NoIdentity, matches
from streams.records.limits import is_plain
from streams.records.schema import MAX_LABEL_CHARS

VLLM, DCGM = shipped_profiles()["vllm"], shipped_profiles()["dcgm"]


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("chat-70b-5d9c7b6f4-x2k8p", "chat-70b"),
        ("chat-70b-7f8d9c6b5-zxcvb", "chat-70b"),
        ("chat-0", "chat"),
        ("llama-3-8b-12", "llama-3-8b"),
        ("dcgm-exporter-x7k2p", "dcgm-exporter"),
        ("bare", "bare"),
        ("my-model", "my-model"),
    ],
)
def test_the_owner_of_a_pod_is_read_from_its_name(pod: str, owner: str) -> None:
    assert PodOwners().owner("prod", pod) == owner


def test_declared_labels_win_over_rules_and_rules_over_templates() -> None:
    labels = {"namespace": "prod", "model_name": "m", "instance": "h:1", "team": "a"}
    rule = WorkloadRule(match={"team": "a"}, workload="by-rule/{model_name}")
    declared = {"declared": {"namespace": "prod", "model_name": "m"}}
    assert Identities(declared, (rule,), "t").of(VLLM, labels) == Identity("declared", "h:1", "h:1")
    assert Identities({}, (rule,), "t").of(VLLM, labels) == Identity("by-rule/m", "h:1", "h:1")
    assert Identities({}, (), "t/{namespace}").of(VLLM, labels) == Identity("t/prod", "h:1", "h:1")
    assert Identities().of(VLLM, labels) == Identity("prod/m", "h:1", "h:1")


def test_engine_and_device_of_one_deployment_are_one_workload() -> None:
    """The exporter of devices runs in another pod, so Prometheus moves the workload's labels aside."""
    engine = {"namespace": "prod", "pod": "chat-70b-5d9c7b6f4-x2k8p", "instance": "10.0.0.7:8000", "engine": "0"}
    device = {
        "namespace": "gpu-operator", "pod": "dcgm-exporter-x7k2p", "exported_namespace": "prod",
        "exported_pod": "chat-70b-5d9c7b6f4-x2k8p", "Hostname": "node3", "gpu": "1", "instance": "10.0.0.9:9400",
    }  # fmt: skip
    identities = Identities()
    assert identities.of(VLLM, engine) == Identity(
        "prod/chat-70b", "chat-70b-5d9c7b6f4-x2k8p", "chat-70b-5d9c7b6f4-x2k8p"
    )
    assert identities.of(DCGM, device) == Identity("prod/chat-70b", "node3", "node3/1")
    both = Identities({"mine": {"namespace": "prod", "pod": "chat-70b-*"}})
    assert {both.of(VLLM, engine)[0], both.of(DCGM, device)[0]} == {"mine"}


def test_an_idle_device_has_no_workload_and_says_why() -> None:
    found = Identities().of(DCGM, {"Hostname": "n", "gpu": "1", "pod": "", "namespace": "", "instance": "i"})
    assert found == NoIdentity("no label names the workload: it would be {namespace}/{pod_owner}", "n")


def test_a_rule_whose_template_lacks_a_label_says_so() -> None:
    rule = WorkloadRule(match={"team": "*"}, workload="{nothing}")
    found = Identities({}, (rule,)).of(VLLM, {"team": "a", "instance": "i", "model_name": "m"})
    assert isinstance(found, NoIdentity)
    assert "{nothing}" in found.reason


def test_what_is_remembered_depends_on_every_label_that_may_decide() -> None:
    identities = Identities({"a": {"zone": "1"}, "b": {"zone": "2"}})
    base = {"instance": "i", "model_name": "m"}
    assert identities.of(VLLM, {**base, "zone": "1"})[0] == "a"
    assert identities.of(VLLM, {**base, "zone": "2"})[0] == "b"
    assert identities.of(VLLM, base)[0] == "m"


def test_matching_is_whole_and_case_sensitive() -> None:
    assert matches({"a": "chat-1"}, {"a": "chat-?"})
    assert not matches({"a": "chat-12"}, {"a": "chat-?"})
    assert not matches({"a": "Chat"}, {"a": "chat"})
    assert not matches({}, {"a": "x*"})


@given(
    st.dictionaries(
        st.sampled_from(["namespace", "pod", "model_name", "instance", "engine"]),
        st.text(max_size=300) | st.text(st.characters(categories=["Cs"]), min_size=125, max_size=135),
    )
)
@example({"model_name": "\ud800" * 300, "instance": "i"})
def test_every_name_is_one_that_records_may_hold(labels: dict[str, str]) -> None:
    found = Identities().of(VLLM, labels)
    if isinstance(found, Identity):
        assert all(is_plain(name, MAX_LABEL_CHARS) and " " not in name for name in found)


def test_long_names_stay_apart() -> None:
    identities = Identities()
    names = {identities.of(VLLM, {"model_name": "m" * 200 + str(n), "instance": "i"})[0] for n in range(5)}
    assert len(names) == 5
