"""Names that are not known: which are kept, with what their record lacks, and that no publisher fills the memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.records.binary import encode_binary
from streams.records.decode import RecordDecoder
from streams.records.schema import DeadLetter
from streams.records.unknown_names import MAX_KEYS, MAX_NAME_CHARS, MAX_NAMES, UnknownNames

T = 1_763_636_400_000
W = "prod/chat"

keys = st.tuples(st.sampled_from(["requests", "fleet"]), st.integers(0, 2 * MAX_KEYS).map(str))
additions = st.lists(st.tuples(keys, st.lists(st.text(max_size=3), min_size=1, max_size=2 * MAX_NAMES)), max_size=40)


@given(additions)
def test_the_table_is_bounded_and_holds_what_came_last(added: list[tuple[tuple[str, str], list[str]]]) -> None:
    table = UnknownNames()
    for stamp_ms, (key, names) in enumerate(added):
        table.newest_ms = stamp_ms
        table.add(key, "s", [name * MAX_NAME_CHARS for name in names], frozenset({"known"}))
        found = table.recent()
        assert len(found) <= MAX_KEYS
        assert all(0 < len(own) <= MAX_NAMES for own in found.values())
        kept = {name.name for name in found[key]}
        assert kept >= {(name * MAX_NAME_CHARS)[:MAX_NAME_CHARS] for name in names[:MAX_NAMES]}
        assert all(len(name.name) <= MAX_NAME_CHARS for own in found.values() for name in own)


def test_a_flood_of_workloads_and_names_drops_the_least_recent() -> None:
    table = UnknownNames()
    for n in range(5_000):
        table.add(("requests", f"w{n}"), "s", [f"name{n}"], frozenset())
        table.add(("requests", "steady"), "s", [f"flood{n}", "wrong"], frozenset())
    found = table.recent()
    assert len(found) == MAX_KEYS
    steady = [name.name for name in found["requests", "steady"]]
    assert steady[0] == "wrong", "the newest comes first"
    assert len(steady) == MAX_NAMES


def test_a_name_that_does_not_come_again_is_dropped_after_ten_minutes() -> None:
    table = UnknownNames()
    table.newest_ms = T
    table.add(("requests", W), "s", ["old"], frozenset())
    table.newest_ms = T + 600_000
    table.add(("requests", W), "s", ["new"], frozenset())
    assert {name.name for name in table.recent()["requests", W]} == {"old", "new"}
    table.newest_ms += 1
    assert {name.name for name in table.recent()["requests", W]} == {"new"}
    table.newest_ms += 600_001
    assert table.recent() == {}


def record(kind: str = "requests", **changes: Any) -> bytes:
    body = {"v": 1, "kind": kind, "workload": W, "source": "pod-1", "ts_ms": T, "values": {}} | changes
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


HIST = {"le": [1.0], "cumulative": [1], "count": 1, "sum": 0.5}
FLEET = {"replicas_ready": 1, "replicas_pending": 0, "replicas_draining": 0}
OUTCOME = {"values": ..., "command_id": "c", "status": "ready"}
CASES: list[tuple[str, bytes, Source, str, set[str], str]] = [
    ("single", record(values={"requests_started_totl": 1, "num_requests_running": 2}), "requests", "requests",
     {"requests_started_totl"}, "requests_started_total"),
    ("packed", record(source=["a", "b"], ts_ms=[T, T], values={"slo_totl": [1, 2]}), "requests", "requests",
     {"slo_totl"}, "slo_total"),
    ("binary", encode_binary("gpu", W, ["g"], [T], {"sm_activ_ratio": [0.5], "power_w": [3.0]}), "gpu", "gpu",
     {"sm_activ_ratio"}, "sm_active_ratio"),
    ("histogram", record(values={"num_requests_running": 2}, hist={"ttft_seconds": HIST}), "requests", "requests",
     {"ttft_seconds"}, "ttft_s"),
    ("packed histogram", record(source=["a"], ts_ms=[T], hist={"tpot": [HIST]}), "requests", "requests", {"tpot"},
     "tpot_s"),
    ("gpu", record("gpu", values={"power": 3.0}), "gpu", "gpu", {"power"}, "power_w"),
    ("fleet", record("fleet", values={**FLEET, "replicas_desird": 3}), "requests", "fleet", {"replicas_desird"},
     "replicas_desired"),
    ("packed fleet", record("fleet", source=["a"], ts_ms=[T], values={n: [c] for n, c in FLEET.items()} | {"x": [1]}),
     "gpu", "fleet", {"x"}, "replicas_desired"),
    ("field", record(ts_ms=..., ts_msec=T, values={"requests_started_total": 1}), "requests", "requests", {"ts_msec"},
     "ts_ms"),
    ("facts", record("outcome", **OUTCOME, lead_time=3.0), "requests", "outcome", {"lead_time"}, "lead_time_s"),
]  # fmt: skip


@pytest.mark.parametrize(("_form", "value", "topic", "kind", "names", "absent"), CASES, ids=[c[0] for c in CASES])
def test_a_misspelt_name_is_kept_with_the_name_that_its_record_lacks(
    _form: str, value: bytes, topic: Source, kind: str, names: set[str], absent: str
) -> None:
    decoder = RecordDecoder(DEFAULT_CATALOGUE, topic, 65_536)
    decoded = decoder.decode(value, W.encode(), T)
    assert not isinstance(decoded, DeadLetter), decoded
    ((key, found),) = decoder.unknown.recent().items()
    assert key == (kind, W)
    assert {name.name for name in found} == names
    assert all(absent in name.absent and not names & name.absent for name in found)
    assert found[0].stamp_ms == T


def test_names_of_refused_records_and_of_ticks_are_not_kept() -> None:
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    refused = decoder.decode(record(values={"wrong": 1, "kv_cache_usage_ratio": 7.0}), W.encode(), T)
    assert isinstance(refused, DeadLetter)
    decoder.decode(json.dumps({"v": 1, "kind": "tick", "ts_ms": T, "wrong": 1}).encode(), None, T)
    decoder.decode(record(values={"requests_started_total": 1}), W.encode(), T)
    assert decoder.unknown.recent() == {}


def test_a_fleet_record_that_is_refused_names_what_it_has_instead() -> None:
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    values = {"replicas_redy": 1, "replicas_pending": 0, "replicas_draining": 0, "x" * 500: 1}
    refused = decoder.decode(record("fleet", values=values), W.encode(), T)
    assert isinstance(refused, DeadLetter)
    assert refused.detail.startswith("replicas_ready is missing (say 0 where there are none); 'replicas_redy', 'xxx")
    assert len(refused.detail) <= 200
