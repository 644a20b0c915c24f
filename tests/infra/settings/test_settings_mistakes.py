"""How each mistake in the settings is told: place, key, and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.settings.errors import _location
from infra.settings.load import Settings, load_settings
from infra.settings.workload import WorkloadSection
from infra.settings.yaml import SettingsFile
from tests.infra.settings.settings_text import load, mistake


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
    file = SettingsFile(Path("a.yaml"), "", {})
    vars(file)["lines"] = {(): 1}
    assert _location(path, file, {}, overrides) == _location([*path, 0], file, {}, overrides) == "command line"
    for other in (path[:-1], [*path[:-1], "other"], ["other", *path], []):
        assert _location(other, file, {}, overrides) == "a.yaml:1"


def test_a_flag_in_the_same_section_is_not_to_blame_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "harmony.yaml"
    path.write_text("fleet: a\nadvanced:\n  guards: {lease_steps: 0}\n")
    with pytest.raises(HarmonyError, match=r"harmony\.yaml:3: advanced\.guards\.lease_steps"):
        load_settings(path, {"advanced": {"worker": {"log_level": "info"}}}, {})
    with pytest.raises(HarmonyError, match=r"command line: advanced\.worker\.log_level"):
        load_settings(None, {"advanced": {"worker": {"log_level": "loud"}}}, {})
