"""Profiles as data: what ships is sound, and a user's mistake is named where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.collect.mapping.profiles import SHIPPED, choose, listed, profile_yaml, read_mapping, shipped_profiles
from infra.collect.mapping.readings import metric_names
from infra.collect.mapping.schema import FIELDS
from infra.console.errors import HarmonyError
from tests.infra.collect.samples import VLLM, packed, reader, readings_of


def test_every_shipped_profile_is_named_as_its_file_and_says_what_it_reads() -> None:
    profiles = shipped_profiles()
    assert set(profiles) == {path.stem for path in SHIPPED.glob("*.yaml")}
    assert all(profile.about for profile in profiles.values())
    assert {"vllm", "sglang", "trtllm", "triton", "tgi", "dcgm", "node", "kube"} <= set(profiles)


def test_no_two_shipped_profiles_read_the_same_series() -> None:
    seen: dict[str, str] = {}
    for profile in shipped_profiles().values():
        for name in metric_names(profile):
            assert seen.setdefault(name, profile.name) == profile.name, name


def test_opt_in_profiles_must_be_named() -> None:
    assert "node" not in {p.name for p in choose().profiles}
    assert [p.name for p in choose(("node",)).profiles] == ["node"]


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(HarmonyError, match="no profile 'vlm'; did you mean vllm") as caught:
        choose(("vlm",))
    assert caught.value.exit_code == 2


def test_a_profile_of_a_file_replaces_the_shipped_one_and_rules_come_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(
        "workloads:\n"
        "  - match: {team: a}\n    workload: a/{model_name}\n"
        "  - match: {team: b}\n    workload: b\n"
        "profiles:\n"
        "  - name: vllm\n    kind: requests\n    fields: {num_requests_running: my_running}\n"
    )
    chosen = choose((), (path,))
    vllm = next(p for p in chosen.profiles if p.name == "vllm")
    assert metric_names(vllm) == {"my_running"}
    assert [rule.workload for rule in chosen.rules] == ["a/{model_name}", "b"]


GPU = "profiles:\n  - name: x\n    kind: gpu\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (f"{GPU}    fields:\n      power: my_power\n", 2, "gpu has no field 'power'; it has"),
        ("profiles:\n  - name: x\n    kind: gpus\n    fields: {}\n", 3, "kind"),
        (f"{GPU}    feilds: {{}}\n", 4, "unknown key profiles[0].feilds; did you mean `fields`"),
        ("profiles:\n  - kind: gpu\n    fields: {power_w: p}\n", 2, "name is missing"),
        (f"{GPU}    fields:\n      power_w: {{metric: p, scale: 0}}\n", 5, "greater than 0"),
        (f"{GPU}    fields:\n      power_w: {{metric: p, increase: true}}\n", 5, "needs per"),
        (f"{GPU}    fields: {{power_w: 'p q'}}\n", 4, "not possible"),
        (f"{GPU}    fields: {{power_w: p}}\n    histograms: {{ttft_s: t}}\n", 2, "no histogram"),
        ("workloads:\n  - workload: w\n", 2, "match is missing"),
        ("workload: []\n", 1, "unknown key workload; did you mean `workloads`"),
        ("workloads: [\n", 2, "not valid YAML"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(HarmonyError) as caught:
        read_mapping(path)
    assert caught.value.exit_code == 2
    assert f"{path}:{line}:" in caught.value.message
    assert words in caught.value.message


def test_a_shown_profile_is_a_mapping_file_that_reads_the_same(tmp_path: Path) -> None:
    for name in shipped_profiles():
        path = tmp_path / f"{name}.yaml"
        path.write_text(profile_yaml(name, ()))
        assert read_mapping(path).profiles == (shipped_profiles()[name],)


def test_the_list_holds_every_profile_with_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(yaml.safe_dump({"profiles": [{"name": "mine", "kind": "gpu", "fields": {"power_w": "p"}}]}))
    rows, rules = listed((path,))
    assert rules == 0
    assert {"mine", "vllm", "node (opt-in)"} <= {row["name"] for row in rows}
    assert all(set(row["fields"]) <= FIELDS[row["kind"]] | {"ttft_s", "tpot_s"} for row in rows)


OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}


def test_an_old_engines_names_mean_the_same() -> None:
    old = VLLM
    for new_name, old_name in OLD_NAMES.items():
        assert new_name in old
        old = old.replace(new_name, old_name)
    new_readings, old_readings = readings_of(VLLM, reader("vllm")), readings_of(old, reader("vllm"))
    assert old_readings == new_readings
    assert packed(old_readings) == packed(new_readings)
