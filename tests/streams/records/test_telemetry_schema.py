"""The published schema and the decoder accept the same records, as far as a schema can tell."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.records.decode import decode
from streams.records.facts import BatchJob, ClassCounts, Control, FleetFacts, HistogramState, OutcomeFact
from streams.records.schema import (
    KINDS,
    DeadLetter,
    encode_batch,
    encode_control,
    encode_fleet,
    encode_outcome,
    encode_packed,
    encode_sample,
    encode_slo,
    encode_tick,
)
from tests.streams.records.json_schema import accepts

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "docs/formats/telemetry.schema.json").read_text(encoding="utf-8")
)
T = 1_763_636_415_000
HIST = HistogramState((0.5, 1.0), (1.0, 2.0), 3.0, 4.0)

GOLDEN: list[tuple[Source, bytes]] = [
    ("requests", encode_sample("requests", "w", "s", T, {"requests_started_total": 1, "slo_total": None})),
    ("requests", encode_sample("requests", "w", "s", T, {"new": 3.5}, {"ttft_s": HIST})),
    ("requests", encode_sample("requests", "w", "s", T, {"kv_cache_usage_ratio": 1.0005})),
    (
        "requests",
        encode_packed("requests", "w", ["a", "b"], [T, T], {"slo_total": [1, None]}, {"ttft_s": [None, HIST]}),
    ),
    ("gpu", encode_sample("gpu", "w", "s", T, {"sm_active_ratio": 0.5, "temperature_c": -3, "power_w": 612})),
    ("gpu", encode_packed("gpu", "w", ["a"], [T], {"memory_used_bytes": [1], "memory_total_bytes": [2]})),
    ("gpu", encode_fleet("w", "k8s", FleetFacts(T, 1, 2, 3, 4))),
    ("requests", encode_fleet("w", "k8s", FleetFacts(T, 1, 2, 3))),
    ("requests", encode_outcome("w", "k8s", OutcomeFact(T, "c", "ready", 3, 61.5))),
    ("requests", encode_batch("w", "nightly", T, [BatchJob(T, 3.0), BatchJob(T + 1, 0.0)])),
    ("requests", encode_slo("w", "gateway", T, [ClassCounts("chat", 3.0, 4.0), ClassCounts("bulk", 0.0, 0.0)])),
    ("requests", encode_tick(T)),
    ("requests", encode_control(Control(control_id="c", ts_ms=T, action="pin", workload="w", replicas=3, by="me"))),
    ("requests", encode_control(Control(control_id="c", ts_ms=T, action="mode", workload="w", mode="act"))),
    ("requests", encode_control(Control(control_id="c", ts_ms=T, action="pause", until_ts_ms=T, reason="a reason"))),
]


def schema_says(body: Any) -> bool:
    return accepts(SCHEMA, body, SCHEMA)


def decoder_says(source: Source, body: Any) -> bool:
    workload = body.get("workload") if isinstance(body, dict) else None
    key = workload.encode() if isinstance(workload, str) else None
    return not isinstance(decode(json.dumps(body).encode(), key, source, stamp_ms=T), DeadLetter)


@pytest.mark.parametrize(("source", "value"), GOLDEN)
def test_golden_records_are_valid(source: Source, value: bytes) -> None:
    assert schema_says(json.loads(value))
    assert decoder_says(source, json.loads(value))


REPLACEMENTS: list[Any] = [
    None, True, 0, -1, 1.5, 2**53, 10**7, "", "text", "a\nb", "<b>", "w" * 129, [], [1], ["a"], ["a", None], [None], {},
    {"a": 1}, {"ttft_s": 1}, {"ttft_s": None},
]  # fmt: skip


def mutations(body: Any) -> list[tuple[str, Any]]:
    """The record with one part, at any depth, replaced or removed."""
    found: list[tuple[str, Any]] = [("", r) for r in REPLACEMENTS]
    if isinstance(body, dict):
        for name, held in body.items():
            found.append((f"-{name}", {k: v for k, v in body.items() if k != name}))
            found += [(f"{name}/{path}", {**body, name: changed}) for path, changed in mutations(held)]
    elif isinstance(body, list):
        found.append(("short", body[:-1]))
        for i, held in enumerate(body):
            found += [(f"{i}/{path}", [*body[:i], c, *body[i + 1 :]]) for path, c in mutations(held)]
    return found


def beyond_a_schema(source: Source, body: Any) -> bool:
    """What the schema's own description says that it cannot tell."""
    if body.get("kind") not in KINDS[source]:
        return True
    for counts in (body.get("classes") or {}).values():
        if counts["good_total"] > counts["total"]:
            return True
    used, total = ((body.get("values") or {}).get(f"memory_{name}_bytes") for name in ("used", "total"))
    for a, b in zip(_listed(used), _listed(total), strict=False):
        if a is not None and b is not None and a > b:
            return True
    source_names = body.get("source")
    columns = [v for v in [body.get("ts_ms"), *(body.get("values") or {}).values()] if isinstance(v, list)]
    hists = body.get("hist") or {}
    for held in hists.values():
        if isinstance(held, list):
            columns.append(held)
        for h in held if isinstance(held, list) else [held]:
            if h is not None and (
                len(h["le"]) != len(h["cumulative"])
                or any(a >= b for a, b in zip(h["le"], h["le"][1:], strict=False))
                or any(a > b for a, b in zip(h["cumulative"], h["cumulative"][1:], strict=False))
                or h["cumulative"][-1] > h["count"]
            ):
                return True
    return isinstance(source_names, list) and any(len(c) != len(source_names) for c in columns)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize(("source", "value"), GOLDEN)
def test_schema_and_decoder_agree_on_every_mutation(source: Source, value: bytes) -> None:
    disagreements = []
    for path, body in mutations(json.loads(value)):
        by_schema, by_decoder = schema_says(body), decoder_says(source, body)
        if by_schema != by_decoder and not (by_schema and beyond_a_schema(source, body)):
            disagreements.append((path, body, by_schema, by_decoder))
    assert disagreements == []


def test_the_schema_knows_every_field_of_the_catalogue() -> None:
    for source in SOURCES:
        own = [i for i in DEFAULT_CATALOGUE if i.source == source and i.rule != "p95"]
        fields = {f for i in own for f in i.fields}
        for kind in (source, f"{source}_packed"):
            assert set(SCHEMA["$defs"][kind]["properties"]["values"]["properties"]) == fields


def test_every_reference_has_its_definition() -> None:
    text = json.dumps(SCHEMA)
    used = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert used == set(SCHEMA["$defs"])


def test_what_the_decoder_takes_from_random_logs_is_valid() -> None:
    from tests.streams.ingest.random_logs import random_log

    rng, taken = random.Random(5), 0
    for source in SOURCES:
        for _, stamp, key, value in rng.sample(random_log(9, source, 1000, 1500, 300, 60), 200):
            if value is not None and not isinstance(decode(value, key, source, stamp_ms=stamp), DeadLetter):
                taken += 1
                assert schema_says(json.loads(value)), value
    assert taken > 200
