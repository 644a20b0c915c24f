"""The formats page and the JSON Schemas say what the records are, and every example on the page is a real record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.records import Command, Decision, ForecastRecord
from infra.schemas import (
    DIALECT,
    FORMATS,
    RECORDS,
    field_notes,
    generated_files,
    main,
    public_structs,
    readme_with_tables,
    schema_of,
)
from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.records.decode import decode
from streams.records.schema import DEAD_LETTER_CODES, KINDS, DeadLetter
from streams.topics import Topics

README = (FORMATS / "README.md").read_text(encoding="utf-8")
EXAMPLES: list[dict[str, Any]] = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]
TELEMETRY = [example for example in EXAMPLES if "kind" in example]
OUTPUT = {
    "decision": next(example for example in EXAMPLES if "guards" in example),
    "command": next(example for example in EXAMPLES if "valid_until_ts_ms" in example),
    "forecast": next(example for example in EXAMPLES if "targets" in example),
}


def test_the_committed_files_are_what_the_records_say() -> None:
    for path, text in generated_files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `python -m infra.schemas write`"


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_schemas_are_closed_over_their_references_and_open_to_new_fields(name: str) -> None:
    schema = schema_of(name)
    assert schema["$schema"] == DIALECT
    assert schema["$id"] == f"urn:harmony:{name}:1"
    text = json.dumps(schema)
    wanted = set(re.findall(r'"#/\$defs/(\w+)"', text))
    assert wanted == set(schema["$defs"])
    assert 'additionalProperties": false' not in text
    assert set(schema["required"]) | {"budget_left_ratio", "lead_time_starts", "work"} >= set(schema["properties"])
    for definition in (schema, *schema["$defs"].values()):
        assert definition["description"].endswith(".")
        assert all(value["description"].rstrip(".") for value in definition["properties"].values())


def structs_of(root: type[msgspec.Struct]) -> set[str]:
    return set(msgspec.json.schema(root)["$defs"])


def test_every_field_of_a_public_record_has_words_and_a_unit() -> None:
    assert set(public_structs()) == set().union(*(structs_of(record) for record in RECORDS.values()))
    for struct in public_structs().values():
        properties = msgspec.json.schema(struct)["$defs"][struct.__name__]["properties"]
        notes = field_notes(struct)
        assert list(notes) == list(properties), struct.__name__
        for name, note in notes.items():
            assert note["text"].endswith(".")
            assert "|" not in note["text"]
            for suffix, unit in (("_ts_ms", "ms"), ("_ms", "ms"), ("_s", "s"), ("_ratio", "1")):
                if name.endswith(suffix):
                    assert note["unit"] == unit, f"{struct.__name__}.{name}"
                    break


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_output_examples_round_trip(name: str) -> None:
    example = OUTPUT[name]
    record = msgspec.convert(example, RECORDS[name], strict=True)
    again = json.loads(msgspec.json.encode(record))
    assert again == example
    assert list(again) == list(example)


def test_output_examples_agree_with_each_other() -> None:
    decision = msgspec.convert(OUTPUT["decision"], Decision)
    command = msgspec.convert(OUTPUT["command"], Command)
    forecast = msgspec.convert(OUTPUT["forecast"], ForecastRecord)
    assert (command.command_id, command.decision_id) == (decision.command_id, decision.decision_id)
    assert (command.replicas, command.expected_current) == (decision.replicas.final, decision.replicas.current)
    assert command.p_miss == decision.risk.p_miss[str(command.replicas)]
    assert command.issued_ts_ms == decision.origin_ts_ms == forecast.origin_ts_ms
    assert command.sequence * forecast.step_ms == command.issued_ts_ms
    assert decision.guards[-1].after == decision.replicas.final
    assert decision.guards[-1].guard == decision.reason
    for rows in forecast.targets.values():
        assert all(len(row) == len(forecast.quantile_levels) for row in rows)


@pytest.mark.parametrize("example", TELEMETRY, ids=lambda e: e["kind"])
def test_telemetry_examples_are_accepted(example: dict[str, Any]) -> None:
    key = example["workload"].encode() if "workload" in example else None
    source: Source = "gpu" if example["kind"] == "gpu" else "requests"
    decoded = decode(json.dumps(example).encode(), key, source)
    assert not isinstance(decoded, DeadLetter), decoded
    assert getattr(decoded, "unknown_names", 0) == 0


def test_every_kind_topic_field_and_code_is_on_the_page() -> None:
    assert {example["kind"] for example in TELEMETRY} == {kind for kinds in KINDS.values() for kind in kinds}
    for spec in Topics().specs():
        assert f"| `{spec.name}` |" in README
    for indicator in DEFAULT_CATALOGUE:
        assert f"`{indicator.name}`" in README
        assert all(f".{field}`" in README for field in indicator.fields)
    section = README.split("## Dead letters")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE)) == sorted(("reason", *DEAD_LETTER_CODES))


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_examples_validate_and_broken_ones_do_not(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(OUTPUT[name])) == []
    assert list(validator.iter_errors({**OUTPUT[name], "a_new_field": 1})) == []
    for field in schema["required"]:
        without = {k: v for k, v in OUTPUT[name].items() if k != field}
        assert list(validator.iter_errors(without)), field
    for field, wrong in (("v", 2), ("workload", ""), ("workload", 7), ("action", "sideways"), ("replicas", -1)):
        if field in schema["properties"]:
            assert list(validator.iter_errors({**OUTPUT[name], field: wrong})), field


def test_check_names_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    monkeypatch.setattr("infra.schemas.generated_files", lambda: generated_files(tmp_path))
    assert main(["check"]) == 1
    assert "command.schema.json is out of date" in capsys.readouterr().err
    assert main(["write"]) == 0
    assert main(["check"]) == 0
    (tmp_path / "README.md").write_text(
        README.replace("| `epoch` | integer |", "| `epoch` | string |"), encoding="utf-8"
    )
    assert main(["check"]) == 1
    assert capsys.readouterr().err == "README.md is out of date: run `python -m infra.schemas write`\n"


@pytest.mark.parametrize("arguments", [[], ["wrong"], ["write", "check"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["<!-- table: Nothing -->\n<!-- end -->", "<!-- table: Decision -->\nno end"])
def test_a_bad_marker_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="bad marker"):
        readme_with_tables(text)
