"""Settings: what a file, the environment and flags make of them, and that no secret is shown."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadGuards, WorkloadSpec
from infra.console.errors import HarmonyError
from infra.settings.docs import example_yaml, write_example
from infra.settings.errors import variables
from infra.settings.load import Settings, load_settings
from infra.settings.schema import GuardsSection, PlanningSection, StreamSection
from infra.settings.workload import WorkloadGuardsSection, WorkloadSection
from streams.config import StreamConfig
from streams.topics import Topics
from tests.infra.settings.settings_text import load, mistake

ROOT = Path(__file__).parents[3]


def test_nothing_given_is_the_design_defaults(tmp_path: Path) -> None:
    given_nothing = load(tmp_path)
    assert given_nothing.stream == StreamConfig()
    assert given_nothing.policy == Policy()
    assert given_nothing.topics == Topics()
    assert given_nothing.policy.fingerprint() == Policy().fingerprint()
    assert given_nothing.kafka_client_options() == {}


def test_every_field_of_the_core_records_can_be_set() -> None:
    def names(record: type) -> set[str]:
        return {field.name for field in dataclasses.fields(record)}

    assert names(GuardLimits) == set(GuardsSection.model_fields) | {"fleet_max_gpus"}
    assert names(WorkloadGuards) == set(WorkloadGuardsSection.model_fields)
    assert names(WorkloadGuards) < names(GuardLimits)
    assert names(Policy) == set(PlanningSection.model_fields) | {"fleet", "epsilon", "proposer", "workloads", "guards"}
    assert {n.replace("_ms", "_s") for n in names(StreamConfig)} == set(StreamSection.model_fields) | {"step_s"}
    own = {"min_replicas", "max_replicas"}
    assert names(WorkloadSpec) - own == set(WorkloadSection.model_fields) - {"replicas", "match"}


def test_at_most_a_dozen_settings_meet_a_new_user() -> None:
    assert len(Settings.model_fields.keys() - {"advanced"}) <= 12


def test_each_declared_value_arrives_in_the_policy(tmp_path: Path) -> None:
    text = """
fleet: blue
step_s: 5
epsilon: 0.05
max_gpus: 64
partitions: 8
topic_prefix: blue.
workloads:
  - id: a/b
    mode: act
    target: {apiVersion: v2, kind: LeaderWorkerSet, namespace: n, name: x}
    replicas: {min: 2, max: 9}
    gpus_per_replica: 4
    price_per_gpu_hour: 3.5
    slo: {ttft_s: 1, tpot_s: 0.05, objective: 0.995, epsilon: 0.3}
    capacity_rps: 7
    lead_time_s: 60
    priority: 3
    power_w_per_replica: 900
    match: {app: x}
    guards: {stabilization_down_s: 600, down_ratio: 0.1}
advanced:
  stream: {grace_s: 4, context_steps: 64}
  planning: {seed: 9}
  guards: {lease_steps: 6, fleet_removals_per_minute: 2}
"""
    loaded = load(tmp_path, text)
    assert loaded.stream == StreamConfig(step_ms=5000, grace_ms=4000, context_steps=64)
    assert loaded.topics == Topics("blue.", 8)
    assert loaded.matches == {"a/b": {"app": "x"}}
    assert loaded.policy == Policy(
        fleet="blue",
        epsilon=0.05,
        seed=9,
        guards=GuardLimits(fleet_max_gpus=64, lease_steps=6, fleet_removals_per_minute=2),
        workloads=(
            WorkloadSpec(
                "a/b",
                TargetRef("v2", "LeaderWorkerSet", "n", "x"),
                2,
                9,
                4,
                price_per_gpu_hour=3.5,
                slo=Slo(1.0, 0.05, 0.995, epsilon=0.3),
                mode="act",
                capacity_rps=7.0,
                lead_time_s=60.0,
                priority=3,
                power_w_per_replica=900.0,
                guards=WorkloadGuards(stabilization_down_s=600.0, down_ratio=0.1),
            ),
        ),
    )
    own = loaded.policy.limits("a/b")
    assert own == replace(loaded.policy.guards, stabilization_down_s=600.0, down_ratio=0.1)
    assert loaded.policy.limits("another") == loaded.policy.guards


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    text = "fleet: file\nstep_s: 1\nweb_port: 1\nadvanced: {guards: {lease_steps: 2, up_replicas: 7}}\n"
    environ = {
        "HARMONY_STEP_S": "2",
        "harmony_web_port": "2",
        "HARMONY_ADVANCED__GUARDS__LEASE_STEPS": "3",
        "OTHER": "x",
    }
    loaded = load(tmp_path, text, environ, web_port=3, brokers=None)
    assert (loaded.fleet, loaded.step_s, loaded.web_port) == ("file", 2.0, 3)
    assert (loaded.policy.guards.lease_steps, loaded.policy.guards.up_replicas) == (3, 7)
    workloads = load(tmp_path, "", {"HARMONY_WORKLOADS": '[{"id": "w"}]', "HARMONY_EPSILON": ""}).policy.workloads
    assert workloads == (WorkloadSpec("w"),)


def test_file_is_found_by_variable_then_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, None, {}).fleet == "default"
    (tmp_path / "harmony.yaml").write_text("fleet: here\n")
    (tmp_path / "other.yaml").write_text("fleet: other\n")
    assert load_settings(None, None, {}).fleet == "here"
    assert load_settings(None, None, {"HARMONY_CONFIG": "other.yaml"}).fleet == "other"
    with pytest.raises(HarmonyError, match=r"There is no file nope.yaml. `harmony init`"):
        load_settings(Path("nope.yaml"), None, {})


def test_kubernetes_service_links_are_told_apart(tmp_path: Path) -> None:
    links = {
        "HARMONY_PORT": "tcp://10.0.0.1:80",
        "HARMONY_SERVICE_HOST": "10.0.0.1",
        "HARMONY_PORT_80_TCP_PROTO": "tcp",
    }
    assert load(tmp_path, "", links) == load(tmp_path)
    told = mistake(tmp_path, "", {"HARMONY_WEB_PORT": "tcp://10.0.0.1:80"})
    assert "enableServiceLinks: false" in told
    assert "HARMONY_WEB_PORT" in told


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    text = (
        "advanced: {kafka: {security_protocol: SASL_PLAINTEXT, sasl_mechanism: PLAIN, sasl_username: u, "
        "sasl_password: hunter2}}"
    )
    loaded = load(tmp_path, text)
    assert loaded.kafka_client_options() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "hunter2",
    }
    assert "hunter2" not in repr(loaded)
    assert "hunter2" not in mistake(tmp_path, text.replace("sasl_username: u, ", ""))
    assert "hunter2" not in mistake(tmp_path, text.replace("hunter2", "[hunter2]"))


@pytest.mark.parametrize(
    "text",
    [
        "advanced: {worker: {metrics_token: 123456789012}}",
        "advanced: {kafka: {sasl_password: 123456789012}}",
        "advanced: {kafka: {sasl_password_file: 123456789012}}",
        "advanced: {kafka: [{sasl_password: 123456789012}]}",
        "advanced: [{kafka: {sasl_password: 123456789012}}]",
        "advanced: {worker: {metrics_token: {is: 123456789012}}}",
        "brokers: {sasl_password: 123456789012}",
    ],
)
def test_a_secret_in_a_mistake_is_not_shown(tmp_path: Path, text: str) -> None:
    told = mistake(tmp_path, text)
    assert text.partition(":")[0] in told
    assert "1234" not in told


def test_a_value_that_is_no_secret_is_shown(tmp_path: Path) -> None:
    assert "got 'soon'" in mistake(tmp_path, "step_s: soon")


def test_password_and_certificate_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    who = "security_protocol: SASL_SSL, sasl_mechanism: SCRAM-SHA-512, sasl_username: u"
    text = f"advanced: {{kafka: {{{who}, sasl_password_file: {secret}}}}}"
    options = load(tmp_path, text).kafka_client_options()
    assert options["sasl_plain_password"] == "hunter2"
    assert options["ssl_context"].check_hostname
    secret.write_bytes(b"hunter2\xff")
    with pytest.raises(HarmonyError, match=rf"Cannot use {secret} .*no UTF-8 text") as refused:
        load(tmp_path, text).kafka_client_options()
    assert refused.value.exit_code == 2
    secret.unlink()
    with pytest.raises(HarmonyError, match=rf"Cannot use {secret} .*No such file"):
        load(tmp_path, text).kafka_client_options()


def test_example_file_is_current_loads_and_shows_the_defaults(tmp_path: Path) -> None:
    text = example_yaml()
    assert (ROOT / "config/harmony.example.yaml").read_text() == text, (
        "harmony init --force config/harmony.example.yaml"
    )
    loaded = load(tmp_path, text)
    assert [w.id for w in loaded.policy.workloads] == ["prod/llm/chat-70b"]
    # Every commented default, uncommented, changes nothing.
    assert load(tmp_path, re.sub(r"^# ?(\s*[a-z_]+:(?: |$))", r"\1", text, flags=re.MULTILINE)) == loaded
    shown = set(re.findall(r"^#?\s*([a-z_]+):", text, flags=re.MULTILINE))
    assert {name.removeprefix("HARMONY_").rpartition("__")[2].lower() for name in variables(Settings)} <= shown


def test_init_writes_once_unless_forced(tmp_path: Path) -> None:
    write_example(tmp_path / "h.yaml")
    with pytest.raises(HarmonyError, match=r"exists; --force"):
        write_example(tmp_path / "h.yaml")
    write_example(tmp_path / "h.yaml", force=True)
    with pytest.raises(HarmonyError, match="Cannot write"):
        write_example(tmp_path / "no/h.yaml")


@pytest.mark.parametrize(
    ("step_ms", "steps"), [(100, 512), (1_000, 512), (5_000, 384), (10_000, 192), (15_000, 128), (60_000, 128)]
)
def test_a_context_is_a_time_within_bounds_unless_it_is_set(step_ms: int, steps: int) -> None:
    assert StreamConfig(step_ms=step_ms, grace_ms=0, skew_ms=0).context_steps == steps
    assert StreamConfig(step_ms=step_ms, grace_ms=0, skew_ms=0, context_steps=7).context_steps == 7
