"""JSON Schemas and field tables of the public records, generated: `python -m infra.schemas write` or `check`.

`check` exits with 1 and names the files when the committed ones are not what the records say today.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agents.records import (
    ClassRisk,
    Command,
    Decision,
    Fingerprint,
    ForecastRecord,
    ForecastView,
    GuardStep,
    InputFacts,
    JumpsAhead,
    PromiseCapacity,
    Quantiles,
    ReplicaView,
    RiskView,
    SurgeAhead,
    Target,
    Trial,
)
from streams.catalogue import DEFAULT_CATALOGUE, Indicator
from streams.topics import DAY_MS, Topics, TopicSpec

# What every field of the public output records means: the one source of the JSON Schemas' and the tables' words.


@dataclass(frozen=True, slots=True)
class Note:
    """Meaning of one field; `limits` are further JSON Schema keywords for its value."""

    unit: str
    text: str
    limits: dict[str, Any] = field(default_factory=dict)


_NOT_NEGATIVE = {"minimum": 0}
_RATIO = {"minimum": 0, "maximum": 1}
_ID = {"minLength": 1}
_VERSION = Note("", "Version of the format; readers ignore fields they do not know.", {"const": 1})
_WORKLOAD = Note("", "What is scaled; also the record's key.", {"minLength": 1, "maxLength": 128})
_ORIGIN = Note(
    "ms", "End of the last closed slot: the instant at which the record speaks, in event time.", _NOT_NEGATIVE
)
_EPSILON = Note("1", "Highest accepted risk.", _RATIO)

SUMMARIES: dict[type[msgspec.Struct], str] = {
    ForecastRecord: "Quantile forecast of the target indicators of one workload.",
    Decision: "One decision of one workload at one origin, holds included.",
    Command: "The lease in force for one workload: safe to obey late, twice or out of order.",
    Quantiles: "Quantiles of one number.",
    PromiseCapacity: "What one replica carries within one promise of the SLO, estimated.",
    ReplicaView: "Replica counts before and after the decision.",
    ClassRisk: "What one SLO class asks for.",
    RiskView: "The stated risk and what each replica count would run.",
    Trial: "Fewer replicas than the allowed risk asks for, to learn whether they carry the load.",
    ForecastView: "The forecast that the plan rests on.",
    JumpsAhead: "Jumps that no forecast has in it, expected as often as they came of late.",
    SurgeAhead: "A surge that has kept a period and is expected again, or is under way.",
    GuardStep: "One guard that spoke.",
    InputFacts: "The telemetry behind the plan.",
    Fingerprint: "What was in force.",
    Target: "The object whose replicas are set.",
}

NOTES: dict[type[msgspec.Struct], dict[str, Note]] = {
    ForecastRecord: {
        "forecast_id": Note("", "Fixed by fleet, workload, origin and model.", _ID),
        "workload": _WORKLOAD,
        "origin_ts_ms": _ORIGIN,
        "step_ms": Note("ms", "Length of one step.", {"exclusiveMinimum": 0}),
        "source": Note("", "Forecaster that made it, for example `ridge` or `seasonal_naive`."),
        "model": Note("", "Fingerprint of the model in force."),
        "quantile_levels": Note("1", "Levels, ascending.", {"minItems": 1, "items": {"type": "number", **_RATIO}}),
        "targets": Note(
            "the indicator's", "Per indicator one row per step after the origin, each with one value per level."
        ),
        "peaks": Note("the indicator's", "Per indicator the quantiles of its highest step within the window."),
        "peak_window_s": Note("s", "Time after the origin that the peaks cover.", _NOT_NEGATIVE),
        "v": _VERSION,
    },
    Decision: {
        "decision_id": Note("", "Fixed by fleet, workload, origin, policy and model: a replay gives the same id.", _ID),
        "workload": _WORKLOAD,
        "origin_ts_ms": _ORIGIN,
        "mode": Note("", "Commands are published in `act` only.", {"enum": ["observe", "act"]}),
        "action": Note(
            "", "What becomes of the replicas; `retired` ends a workload.", {"enum": ["up", "down", "hold", "retired"]}
        ),
        "reason": Note("", "Guard that had the last word; else the proposer; else why there was no plan.", _ID),
        "replicas": Note("", "Counts before and after."),
        "risk": Note("", "Stated risk, and risk per replica count."),
        "forecast": Note("", "What demand the plan expects."),
        "capacity_per_replica": Note(
            "1/s", "What one replica carries within the SLO, of the forecast's indicator; null: not known yet."
        ),
        "lead_time_s": Note("s", "Time from command to serving replica; null: not known yet."),
        "proposer": Note("", "Who proposed the count that the guards were given; null: nobody did."),
        "guards": Note("", "The guards that spoke, in order."),
        "shadow": Note("", "What other rules than the proposer would have wanted: rule to replicas, within bounds."),
        "inputs": Note("", "State of the telemetry."),
        "fingerprint": Note("", "Policy and model in force."),
        "command_id": Note("", "The lease that this decision starts or renews; null: it gives no command."),
        "v": _VERSION,
    },
    Command: {
        "command_id": Note("", "New only when the wanted count changes; a renewed lease keeps it.", _ID),
        "decision_id": Note("", "The decision behind this record.", _ID),
        "workload": _WORKLOAD,
        "target": Note("", "The object to scale."),
        "replicas": Note("", "Wanted replicas, absolute; never a difference.", _NOT_NEGATIVE),
        "expected_current": Note(
            "", "Replicas that the decision saw; another number means someone else acts.", _NOT_NEGATIVE
        ),
        "epoch": Note("", "Raised only by `harmony state reset`; a lower one is void.", _NOT_NEGATIVE),
        "sequence": Note("", "Grows with every decision within an epoch; a lower one is void.", _NOT_NEGATIVE),
        "issued_ts_ms": Note("ms", "The decision's origin.", _NOT_NEGATIVE),
        "valid_until_ts_ms": Note(
            "ms", "From this instant on the lease has run out and must not be applied.", _NOT_NEGATIVE
        ),
        "reason": Note("", "The decision's reason.", _ID),
        "p_miss": Note("1", "Risk of missing the objective with these replicas; null: not computed.", _RATIO),
        "epsilon": _EPSILON,
        "v": _VERSION,
    },
    Quantiles: {
        "levels": Note("1", "Levels, ascending.", {"items": {"type": "number", **_RATIO}}),
        "values": Note("the field's", "One value per level."),
    },
    PromiseCapacity: {
        "promise": Note("", "Time to first token, or time per token.", {"enum": ["ttft", "tpot"]}),
        "capacity": Note("1/s", "Load at which just the allowed share misses it, of the forecast's indicator."),
        "miss_share": Note(
            "1", "Share expected to miss it at the forecast's median peak on the proposed count.", _RATIO
        ),
    },
    ReplicaView: {
        "ready": Note("", "Serving; null: not reported.", _NOT_NEGATIVE),
        "pending": Note("", "Ordered, not serving yet; null: not reported.", _NOT_NEGATIVE),
        "current": Note("", "Counted as in force: what `hold` keeps.", _NOT_NEGATIVE),
        "proposed": Note("", "What the planner asked for; null: no plan.", _NOT_NEGATIVE),
        "final": Note("", "What the guards left of it; null: nothing to count from.", _NOT_NEGATIVE),
    },
    RiskView: {
        "epsilon": _EPSILON,
        "objective": Note("1", "Wanted share of requests within the SLO.", _RATIO),
        "p_miss": Note("1", "Replica count (as text) to the probability that attainment falls below the objective."),
        "p_miss_stderr": Note("1", "Standard error of the final count's risk; null: not computed.", _NOT_NEGATIVE),
        "budget_left_ratio": Note("1", "Share of the error budget that is left; null: not known."),
        "p_needed": Note(
            "1", "Probability that the last replica is needed before it could come back; null: it stays anyway.", _RATIO
        ),
        "slo_class": Note("", "SLO class that asked for most, whose risks these are; null: there is only one."),
        "classes": Note("", "What each SLO class asks for; empty: there is only one."),
        "miss_share": Note("1", "Replica count (as text) to the share of requests expected to miss the SLO."),
        "bearable_share": Note("1", "Share of requests that the plan might expect to miss; null: no plan.", _RATIO),
        "trial": Note("", "What is hoped for of the proposed count, where it is tried; null: it is not."),
        "promises": Note(
            "", "What one replica carries within each promise known to have been missed, the first to give way first."
        ),
    },
    Trial: {
        "replicas": Note("", "Fewer than the allowed risk asks for.", _NOT_NEGATIVE),
        "p_miss": Note("1", "Risk with so many if a replica carries no less than is hoped for.", _RATIO),
        "p_miss_stderr": Note("1", "Its standard error.", _NOT_NEGATIVE),
        "miss_share": Note("1", "Share of requests then expected to miss the SLO.", _RATIO),
        "doubt_ratio": Note("1", "Part of the capacities believed possible that was left out, the least.", _RATIO),
    },
    ClassRisk: {
        "name": Note("", "Of the class; of several, joined by `+`, where telemetry does not tell them apart.", _ID),
        "objective": Note("1", "Wanted share of its requests within its SLO.", _RATIO),
        "epsilon": _EPSILON,
        "replicas": Note("", "Fewest that keep it; null: no plan.", _NOT_NEGATIVE),
        "p_miss": Note("1", "Risk with so many; null: not computed.", _RATIO),
        "budget_left_ratio": Note("1", "Share of its error budget that is left."),
    },
    ForecastView: {
        "model": Note("", "Fingerprint of the model in force."),
        "source": Note("", "Forecaster that answered for this workload; null: none did."),
        "indicator": Note("", "What is forecast."),
        "unit": Note("", "Unit of the indicator."),
        "window_s": Note("s", "Time after the origin that the peak covers; null: no plan.", _NOT_NEGATIVE),
        "peak": Note("the indicator's", "Highest demand within the window; null: no plan."),
        "surge": Note("", "The first surge that comes again within the horizon, or is under way; null: none."),
        "jumps": Note("", "Jumps that are in some of the futures of this plan; null: none."),
    },
    JumpsAhead: {
        "per_hour": Note("1/h", "How often one is expected.", _NOT_NEGATIVE),
        "arrival_rate": Note("1/s", "Requests that one adds to those of now, the median.", _NOT_NEGATIVE),
        "seen": Note("", "How many are remembered.", _NOT_NEGATIVE),
    },
    SurgeAhead: {
        "start_ts_ms": Note("ms", "When it is expected to begin, or began.", _NOT_NEGATIVE),
        "begun": Note("", "Whether it is under way."),
        "chance": Note("1", "Probability that it comes.", _RATIO),
        "period_s": Note("s", "Period that it has kept.", _NOT_NEGATIVE),
        "length_s": Note("s", "How long it lasted, the median.", _NOT_NEGATIVE),
        "arrival_rate": Note("1/s", "Requests that it added, the median.", _NOT_NEGATIVE),
        "seen": Note("", "How often it came, of those remembered.", _NOT_NEGATIVE),
        "due": Note("", "How often it would have by its period.", _NOT_NEGATIVE),
    },
    GuardStep: {
        "guard": Note("", "Name of the guard.", _ID),
        "before": Note("", "Replicas it was given.", _NOT_NEGATIVE),
        "after": Note("", "Replicas it left.", _NOT_NEGATIVE),
        "reason": Note("", "Why, for people."),
    },
    InputFacts: {
        "arrival_rate": Note("1/s", "Requests in the last slot; null: not observed.", _NOT_NEGATIVE),
        "observed_ratio": Note("1", "Share of the context's steps with what the workload is planned by.", _RATIO),
        "observed_steps": Note("", "Steps of the context with an observed arrival rate.", _NOT_NEGATIVE),
        "oldest_age_ms": Note("ms", "Age at the origin of the newest sample of the quietest source; null: no source."),
        "coverage_ratio": Note(
            "1", "Sources heard in the last slot over sources due, of requests or of GPUs, whichever is less.", _RATIO
        ),
        "censored": Note("", "The arrival rate is known from completed requests only."),
        "flat": Note("", "The arrival rate has not moved for a suspicious time."),
        "cliff": Note("", "The arrival rate fell suspiciously far within one step."),
        "zero_after_nonzero": Note("", "The arrival rate is exactly zero and was not before."),
        "offsets": Note("", "Per telemetry source the offset of the record that closed the slot."),
    },
    Fingerprint: {
        "policy": Note("", "Of everything declared that can change a decision."),
        "model": Note("", "Of model, parameters and code."),
    },
    Target: {
        "apiVersion": Note("", "As Kubernetes writes it."),
        "kind": Note("", "For example `Deployment`."),
        "namespace": Note("", "Its namespace."),
        "name": Note("", "Its name."),
    },
}


FORMATS = Path(__file__).parents[1] / "docs" / "formats"
RECORDS: dict[str, type[msgspec.Struct]] = {"decision": Decision, "command": Command, "forecast": ForecastRecord}
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TOPIC_NOTES = {
    "telemetry.gpu": ("workload", "samples of devices, fleet facts, outcomes, ticks"),
    "telemetry.requests": ("workload", "samples of serving engines, fleet facts, outcomes, ticks, control records"),
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
    generated = msgspec.json.schema(root)
    definitions = generated["$defs"]
    for struct, notes in NOTES.items():
        if struct.__name__ in definitions:
            _annotate(definitions[struct.__name__], SUMMARIES[struct], notes)
    body = definitions.pop(root.__name__)
    if "v" in body["properties"]:
        # Written in every record, though a reader of ours would assume it.
        body["properties"]["v"].pop("default", None)
        body["required"].append("v")
    head = {"$schema": DIALECT, "$id": f"urn:harmony:{name}:1"}
    return {**head, **body, "$defs": dict(sorted(definitions.items()))}


def _annotate(definition: dict[str, Any], summary: str, notes: dict[str, Note]) -> None:
    definition["description"] = summary
    for name, value in definition["properties"].items():
        note = notes[name]
        value["description"] = note.text if not note.unit or "'s" in note.unit else f"{note.text} Unit: {note.unit}."
        options = value.get("anyOf", [value])
        for option in options:
            if option.get("type") != "null" and note.limits:
                option.update(note.limits)


def table_of(struct: type[msgspec.Struct]) -> str:
    """Markdown table of a record's fields."""
    lines = ["| field | type | unit | meaning |", "|---|---|---|---|"]
    properties = msgspec.json.schema(struct)["$defs"][struct.__name__]["properties"]
    for name, value in properties.items():
        note = NOTES[struct][name]
        words = ", ".join(f"`{word}`" for word in note.limits.get("enum", ()))
        choice = f" One of {words}." if words else ""
        lines.append(f"| `{name}` | {_type_words(value)} | {note.unit} | {note.text}{choice} |")
    return "\n".join(lines)


def _type_words(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(_type_words(option) for option in value["anyOf"])
    if "$ref" in value:
        return f"[{value['$ref'].rsplit('/', 1)[-1]}](#{value['$ref'].rsplit('/', 1)[-1].lower()})"
    if value["type"] == "array":
        return f"list of {_type_words(value['items'])}"
    if value["type"] == "object":
        return f"map to {_type_words(value['additionalProperties'])}"
    return str(value["type"])


def topic_table(topics: Topics) -> str:
    """Markdown table of the topics as `harmony topics create` makes them."""
    lines = ["| topic | key | partitions | kept | holds |", "|---|---|---|---|---|"]
    for spec in topics.specs():
        key, holds = _TOPIC_NOTES[spec.name.removeprefix(topics.prefix)]
        lines.append(f"| `{spec.name}` | {key} | {spec.partitions} | {_kept(spec)} | {holds} |")
    return "\n".join(lines)


def _kept(spec: TopicSpec) -> str:
    kept_ms = int(spec.config["retention.ms"])
    if kept_ms < 0:
        return f"{int(spec.config['retention.bytes']) >> 20} MiB per partition"
    days = kept_ms // DAY_MS
    words = f"{days} day{'s' if days != 1 else ''}"
    return f"{words}, compacted" if "compact" in spec.config["cleanup.policy"] else words


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
    tables = {struct.__name__: table_of(struct) for struct in NOTES}
    tables |= {"topics": topic_table(Topics()), "indicators": indicator_table()}
    head, *parts = text.split("<!-- table: ")
    for part in parts:
        name, found, rest = part.partition(" -->")
        _, ended, after = rest.partition("<!-- end -->")
        if not found or not ended or name not in tables:
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
