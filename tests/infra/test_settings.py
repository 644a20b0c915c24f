"""Settings: what a file, the environment and flags make of them, and how each mistake is told."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
from infra.errors import HarmonyError
from infra.settings import Settings, load_settings
from infra.settings_errors import _place, variables
from infra.settings_example import example_yaml, write_example
from infra.settings_file import SettingsFile
from infra.settings_schema import GuardsSection, PlanningSection, StreamSection, WorkloadSection
from streams.config import StreamConfig
from streams.topics import Topics

ROOT = Path(__file__).parents[2]


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> Settings:
    path = tmp_path / "harmony.yaml"
    path.write_text(text)
    return load_settings(path, flags, environ or {})


def mistake(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(HarmonyError) as stop:
        load(tmp_path, text, environ, **flags)
    assert stop.value.exit_code == 2
    return stop.value.message.replace(f"{tmp_path}/", "")


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
    slo: {ttft_s: 1, tpot_s: 0.05, objective: 0.995}
    capacity_rps: 7
    lead_time_s: 60
    priority: 3
    power_w_per_replica: 900
    match: {app: x}
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
                3.5,
                Slo(1.0, 0.05, 0.995),
                "act",
                7.0,
                60.0,
                3,
                900.0,
            ),
        ),
    )


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("brokerz: x", "harmony.yaml:1: unknown key brokerz; did you mean `brokers`."),
        (
            "fleet: a\nadvanced:\n  guards:\n    lease_step: 1",
            "harmony.yaml:4: unknown key advanced.guards.lease_step; did you mean `lease_steps`.",
        ),
        (
            "workloads:\n- id: a\n- id: b\n  replicas: {mim: 1}",
            "harmony.yaml:4: unknown key workloads[1].replicas.mim; did you mean `min`.",
        ),
        (
            "workloads:\n- id: a\n  target: {apiVersio: v1}",
            "harmony.yaml:3: unknown key workloads[0].target.apiVersio; did you mean `apiVersion`.",
        ),
        ("workloads:\n- mode: act", "harmony.yaml:2: workloads[0].id is missing."),
        ("workloads: [{id: a}, {id: a}]", "harmony.yaml: workload 'a' is declared twice."),
        ("workloads:\n- id: a b", "harmony.yaml:2: workloads[0].id: 'a b' is not possible: Name in the telemetry"),
        (
            "workloads:\n- id: a\n  replicas: {min: 3, max: 2}",
            "harmony.yaml:3: workloads[0].replicas: min (3) is above max (2).",
        ),
        ("step_s: fast", "harmony.yaml:1: step_s: input should be a valid number"),
        ("step_s: .inf", "harmony.yaml:1: step_s: input should be a finite number"),
        ("step_s: 100000", "harmony.yaml:1: step_s: input should be less than or equal to 86400"),
        (
            "advanced: {stream: {grace_s: .inf}}",
            "harmony.yaml:1: advanced.stream.grace_s: input should be a finite number",
        ),
        (
            "advanced: {stream: {grace_s: 1e300}}",
            "harmony.yaml:1: advanced.stream.grace_s: must lie within -1e+15 and 1e+15, got 1e+300",
        ),
        (
            "advanced: {stream: {max_workloads: " + "9" * 400 + "}}",
            "harmony.yaml:1: advanced.stream.max_workloads: must lie within -1e+15 and 1e+15, got 9999",
        ),
        (
            "advanced: {plugins: {policy: mine, options: {policy: {seed: " + "9" * 30 + "}}}}",
            "harmony.yaml:1: advanced.plugins.options: those of policy hold what JSON cannot",
        ),
        (
            "advanced: {plugins: {policy: mine, options: {policy: {key: !!binary aGVsbG8=}}}}",
            "harmony.yaml:1: advanced.plugins.options: those of policy hold what JSON cannot",
        ),
        (
            "advanced: {stream: {context_steps: 99999999999}}",
            "harmony.yaml:1: advanced.stream.context_steps: input should be less",
        ),
        (
            "advanced: {guards: {stabilization_down_s: .inf}}",
            "harmony.yaml:1: advanced.guards.stabilization_down_s: input should be",
        ),
        (
            "workloads: [{id: a, lead_time_s: .inf}]",
            "harmony.yaml:1: workloads[0].lead_time_s: input should be a finite number",
        ),
        (
            "workloads: [{id: a, slo: {ttft_s: .inf}}]",
            "harmony.yaml:1: workloads[0].slo.ttft_s: input should be a finite number",
        ),
        (
            "workloads: [{id: a, price_per_gpu_hour: .inf}]",
            "harmony.yaml:1: workloads[0].price_per_gpu_hour: input should be",
        ),
        ('state_dir: "a\\0b"', "harmony.yaml:1: state_dir: must not hold a NUL character"),
        ('advanced: {kafka: {ssl_cafile: "a\\0b"}}', "harmony.yaml:1: advanced.kafka.ssl_cafile: must not hold a NUL"),
        ("step_s: .nan", "harmony.yaml:1: step_s: input should be"),
        ("advanced: {stream: {grace_s: 1}}", "harmony.yaml:1: advanced.stream: skew_s (2) is above grace_s (1)"),
        ("brokers: http://x", "harmony.yaml:1: brokers: 'http://x' is no broker address"),
        ("role: ingest,plan", "harmony.yaml:1: role: 'ingest,plan' is not possible: What a worker does"),
        ("a: 1\nfleet: x\nfleet: y", "harmony.yaml:3: fleet is given twice (first on line 2)."),
        ("fleet: [", "harmony.yaml:1: not valid YAML"),
        ("- a", "harmony.yaml: the file must hold keys and values"),
        ("1: a", "harmony.yaml: the file must hold keys and values"),
        ("fleet: &a [*a]", "harmony.yaml"),
        ("fleet: !!python/object/apply:os.system [ls]", "harmony.yaml:1: not valid YAML: could not determine"),
    ],
)
def test_each_mistake_names_place_key_and_what_would_be_right(tmp_path: Path, text: str, told: str) -> None:
    assert mistake(tmp_path, text).startswith(told)


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    assert len(mistake(tmp_path, "step_s: -1\nepsilon: 2\nnope: 1").splitlines()) == 3


COMPLETE = {
    "target": "{name: x}",
    "slo": "{ttft_s: 1}",
    "replicas": "{min: 1, max: 2}",
}


@pytest.mark.parametrize("left_out", [None, *COMPLETE])
def test_act_needs_target_bounds_and_slo(tmp_path: Path, left_out: str | None) -> None:
    lines = [f"  {key}: {value}" for key, value in COMPLETE.items() if key != left_out]
    text = "\n".join(["workloads:", "- id: a", "  mode: act", *lines])
    if left_out is None:
        assert load(tmp_path, text).policy.workloads[0].mode == "act"
    else:
        assert f"mode act needs {left_out}" in mistake(tmp_path, text)
        assert load(tmp_path, text.replace("mode: act", "mode: observe")).policy.workloads[0].mode == "observe"


def test_act_with_half_the_bounds(tmp_path: Path) -> None:
    text = "workloads: [{id: a, mode: act, target: {name: x}, slo: {}, replicas: {min: 1}}]"
    assert "mode act needs replicas.max;" in mistake(tmp_path, text)


def test_environment_mistakes_name_the_variable(tmp_path: Path) -> None:
    assert mistake(tmp_path, "", {"HARMONY_BROKER": "x"}) == (
        "The environment variable HARMONY_BROKER sets nothing; did you mean `HARMONY_BROKERS`."
    )
    assert mistake(tmp_path, "web_port: 1", {"HARMONY_WEB_PORT": "high"}).startswith(
        "environment variable HARMONY_WEB_PORT: web_port: "
    )
    assert (
        mistake(tmp_path, "", {"HARMONY_WORKLOADS": "["}) == "environment variable HARMONY_WORKLOADS: not valid JSON."
    )
    assert (
        mistake(tmp_path, "", {"HARMONY_FLEET": "x", "HARMONY_WORKLOADS": "[" * 100_000})
        == "environment variable HARMONY_WORKLOADS: its JSON is nested too deep."
    )
    assert mistake(tmp_path, "", None, role="x").startswith("command line: role: ")


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


yaml_keys = st.text(max_size=8) | st.sampled_from(sorted(WorkloadSection.model_fields))
yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(yaml_keys, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(content=st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), yaml_values, max_size=4))
def test_any_content_gives_settings_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True))
    try:
        loaded = load_settings(path, None, {})
    except HarmonyError as error:
        told = error
    else:
        assert loaded.policy.fingerprint()
        assert loaded.stream.step_ms > 0
        return
    assert told.exit_code == 2
    assert str(path) in told.message


@given(
    st.lists(st.sampled_from(["advanced", "guards", "lease_steps", "worker"]), min_size=1, max_size=3), st.integers()
)
def test_the_command_line_is_blamed_for_what_it_gave_alone(path: list[str], value: int) -> None:
    overrides: dict[str, Any] = {path[-1]: value}
    for part in reversed(path[:-1]):
        overrides = {part: overrides}
    file = SettingsFile(Path("a.yaml"), {}, {(): 1})
    assert _place(path, file, {}, overrides) == _place([*path, 0], file, {}, overrides) == "command line"
    for other in (path[:-1], [*path[:-1], "other"], ["other", *path], []):
        assert _place(other, file, {}, overrides) == "a.yaml:1"


def test_a_flag_in_the_same_section_is_not_to_blame_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "harmony.yaml"
    path.write_text("fleet: a\nadvanced:\n  guards: {lease_steps: 0}\n")
    with pytest.raises(HarmonyError, match=r"harmony\.yaml:3: advanced\.guards\.lease_steps"):
        load_settings(path, {"advanced": {"worker": {"log_level": "info"}}}, {})
    with pytest.raises(HarmonyError, match=r"command line: advanced\.worker\.log_level"):
        load_settings(None, {"advanced": {"worker": {"log_level": "loud"}}}, {})
