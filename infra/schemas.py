"""JSON Schemas and field tables of the public records, generated: `python -m infra.schemas write` or `check`.

`check` exits with 1 and names the files when the committed ones are not what the records say today.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from agents.records import Command, Decision, ForecastRecord
from streams.catalogue import DEFAULT_CATALOGUE, Indicator
from streams.topics import DAY_MS, Topics, TopicSpec

FORMATS = Path(__file__).parents[1] / "docs" / "formats"
RECORDS: dict[str, type[msgspec.Struct]] = {"decision": Decision, "command": Command, "forecast": ForecastRecord}
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TOPIC_NOTES = {
    "telemetry.gpu": ("workload", "samples of devices, fleet facts, outcomes, ticks"),
    "telemetry.requests": ("workload", "samples of serving engines, fleet facts, outcomes, ticks"),
    "controls": ("none", "operators' pins, modes and pauses; one partition"),
    "forecasts": ("workload", "quantile forecasts"),
    "decisions": ("workload", "every decision, holds included"),
    "commands": ("workload", "the lease in force per workload"),
    "dead-letters": ("of the refused record", "refused records as they came; in floods a sample of them"),
    "pages": ("internal", "closed slots: state of the ingest stage"),
    "pages.coarse": ("internal", "ten-minute means of demand"),
    "plans": ("internal", "plans of the whole fleet, one partition"),
    "commits": ("internal", "commit records of the forecast and decide stages"),
}


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one public record; unknown fields are allowed, so that formats can grow."""
    root = RECORDS[name]
    definitions = msgspec.json.schema(root)["$defs"]
    for definition in definitions.values():
        definition["description"] = definition["description"].split("\n\n")[0]  # the summary of the docstring
    body = definitions.pop(root.__name__)
    if "v" in body["properties"]:
        # Written in every record, though a reader of ours would assume it.
        body["properties"]["v"].pop("default", None)
        body["required"].append("v")
    head = {"$schema": DIALECT, "$id": f"urn:harmony:{name}:1"}
    return {**head, **body, "$defs": dict(sorted(definitions.items()))}


def public_structs() -> dict[str, type[msgspec.Struct]]:
    """By name, every struct that the public records are made of, each after those that hold it."""
    structs: dict[str, type[msgspec.Struct]] = {}
    waiting: list[msgspec.inspect.Type] = [msgspec.inspect.type_info(record) for record in RECORDS.values()]
    while waiting:
        kind = waiting.pop(0)
        if isinstance(kind, msgspec.inspect.StructType):
            structs[kind.cls.__name__] = kind.cls
            waiting += [field.type for field in kind.fields]
        elif isinstance(kind, msgspec.inspect.Metadata):
            waiting.append(kind.type)
        elif isinstance(kind, msgspec.inspect.UnionType):
            waiting += kind.types
        elif isinstance(kind, msgspec.inspect.VarTupleType):
            waiting.append(kind.item_type)
        elif isinstance(kind, msgspec.inspect.DictType):
            waiting.append(kind.value_type)
    return structs


def field_notes(struct: type[msgspec.Struct]) -> dict[str, dict[str, str]]:
    """By encoded name, `unit` and `text` of every field of a struct."""
    hints = get_type_hints(struct, include_extras=True)
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {encoded: _note(hints[name]) for name, encoded in names}


def _note(hint: Any) -> dict[str, str]:
    """`unit` and `text` of an annotated type."""
    return next(meta.extra for meta in get_args(hint)[1:] if meta.extra is not None)


def table_of(struct: type[msgspec.Struct]) -> str:
    """Markdown table of a record's fields."""
    lines = ["| field | type | unit | meaning |", "|---|---|---|---|"]
    properties = msgspec.json.schema(struct)["$defs"][struct.__name__]["properties"]
    for name, note in field_notes(struct).items():
        value = properties[name]
        choices = ", ".join(f"`{word}`" for word in value.get("enum", ()))
        choice = f" One of {choices}." if choices else ""
        lines.append(f"| `{name}` | {_type_text(value)} | {note['unit']} | {note['text']}{choice} |")
    return "\n".join(lines)


def _type_text(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(_type_text(option) for option in value["anyOf"])
    if "$ref" in value:
        return f"[{value['$ref'].rsplit('/', 1)[-1]}](#{value['$ref'].rsplit('/', 1)[-1].lower()})"
    if value["type"] == "array":
        return f"list of {_type_text(value['items'])}"
    if value["type"] == "object":
        return f"map to {_type_text(value['additionalProperties'])}"
    return str(value["type"])


def topic_table(topics: Topics) -> str:
    """Markdown table of the topics as `harmony topics create` makes them."""
    lines = ["| topic | key | partitions | kept | holds |", "|---|---|---|---|---|"]
    for spec in topics.specs():
        key, holds = _TOPIC_NOTES[spec.name.removeprefix(topics.prefix)]
        lines.append(f"| `{spec.name}` | {key} | {spec.partitions} | {_retention_text(spec)} | {holds} |")
    return "\n".join(lines)


def _retention_text(spec: TopicSpec) -> str:
    retention_ms = int(spec.config["retention.ms"])
    if retention_ms < 0:
        return f"{int(spec.config['retention.bytes']) >> 20} MiB per partition"
    days = retention_ms // DAY_MS
    text = f"{days} day{'s' if days != 1 else ''}"
    return f"{text}, compacted" if "compact" in spec.config["cleanup.policy"] else text


_RULES = {
    "rate": "counter, increase per second",
    "mean": "mean over the step",
    "max": "largest of the step",
    "ratio": "first over second, mean over the step",
    "miss_ratio": "1 − increase of the first over increase of the second",
    "p95": "95th percentile of the step's increase of the histogram",
}


def indicator_table(catalogue: Sequence[Indicator] = DEFAULT_CATALOGUE) -> str:
    """Markdown table of the names that telemetry carries and the indicators made of them."""
    lines = [
        "| kind | in the record | how | over sources | indicator | unit | level |",
        "|---|---|---|---|---|---|---|",
    ]
    for i in catalogue:
        where = "hist" if i.rule == "p95" else "values"
        joint = ", else " if i.rule == "rate" else ", "
        names = joint.join(f"`{where}.{name}`" for name in i.fields)
        over = "merged" if i.rule in ("p95", "miss_ratio") else i.over_sources
        lines.append(f"| {i.source} | {names} | {_RULES[i.rule]} | {over} | `{i.name}` | {i.unit} | {i.level} |")
    return "\n".join(lines)


def readme_with_tables(text: str) -> str:
    """The page with every generated part, `<!-- table: NAME -->` to `<!-- end -->`, made anew.

    Raises:
        ValueError: a marker without end, or an unknown name.
    """
    tables = {name: table_of(struct) for name, struct in public_structs().items()}
    tables |= {"topics": topic_table(Topics()), "indicators": indicator_table()}
    head, *parts = text.split("<!-- table: ")
    for part in parts:
        name, separator, rest = part.partition(" -->")
        _, ended, after = rest.partition("<!-- end -->")
        if not separator or not ended or name not in tables:
            raise ValueError(f"docs/formats/README.md: bad marker `<!-- table: {name[:40]}`")
        head += f"<!-- table: {name} -->\n{tables[name]}\n<!-- end -->{after}"
    return head


def generated_files(directory: Path = FORMATS) -> dict[Path, str]:
    """Every generated file and the content that it must have."""
    files = {
        directory / f"{name}.schema.json": json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n"
        for name in RECORDS
    }
    readme = directory / "README.md"
    files[readme] = readme_with_tables(readme.read_text(encoding="utf-8"))
    return files


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 done or nothing to do, 1 files differ, 2 wrong usage."""
    if list(arguments) not in (["write"], ["check"]):
        sys.stderr.write("usage: python -m infra.schemas write|check\n")
        return 2
    stale = [
        path
        for path, text in generated_files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if arguments[0] == "write":
        for path, text in generated_files().items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in stale:
        sys.stderr.write(f"{path.name} is out of date: run `python -m infra.schemas write`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
