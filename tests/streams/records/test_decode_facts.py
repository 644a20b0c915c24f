"""Facts are read once where nothing can be wrong with them, and closely wherever something may be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.records.decode import decode
from streams.records.facts import BatchJob, ClassCounts, FleetFacts
from streams.records.limits import MAX_REPLICAS
from streams.records.schema import DeadLetter, FleetRecord, encode_batch, encode_fleet, encode_slo, encode_tick
from tests.streams.records.bad_records import KEY, T, W, record

COUNT_NAMES = st.sampled_from(["replicas_ready", "replicas_pending", "replicas_draining", "replicas_desired", "new"])
TOLD_COUNTS = st.sampled_from([0, 3, MAX_REPLICAS, None, -1, MAX_REPLICAS + 1])
THREE = {"replicas_ready": 1, "replicas_pending": 0, "replicas_draining": 0}


@given(
    st.dictionaries(COUNT_NAMES, TOLD_COUNTS)
    | st.dictionaries(COUNT_NAMES, TOLD_COUNTS).map(lambda told: THREE | told),
    st.sampled_from(["k8s", "a:b", "", "<b>"]),
    st.sampled_from([T, 0, -1, 1 << 60]),
)
def test_fleet_facts_are_what_a_pack_of_one_says(values: dict[str, int | None], source: str, ts_ms: int) -> None:
    """Single ones are mostly read in a way of their own."""
    alone = decode(record(kind="fleet", source=source, ts_ms=ts_ms, values=values), KEY, "requests")
    columns = {name: [count] for name, count in values.items()}
    packed = decode(record(kind="fleet", source=[source], ts_ms=[ts_ms], values=columns), KEY, "requests")
    assert alone == packed


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"replicas_ready":1', '"replicas_ready":1,"replicas_ready":2', "schema"),
        ('"v":1', '"v":1,"v":1', "schema"),
        # What is escaped in a name could stand in for a colon that should not be there.
        ('"v":1,', '"v":1,"v":1,"x\\u003a":1,', "schema"),
        ('"v":1', '"v":1,"more":[1e999]', "non_finite"),
        ('"v":1', '"v":1,"more":' + "[" * 40 + "]" * 40, "nesting"),
    ],
)
def test_what_the_fast_parser_passes_over_is_found_in_fleet_facts_too(old: str, new: str, code: str) -> None:
    good = record(kind="fleet", source="k8s", ts_ms=T, values=THREE).replace(b" ", b"")
    bad = good.replace(old.encode(), new.encode())
    assert isinstance(decode(good, KEY, "requests"), FleetRecord)
    assert bad != good
    found = decode(bad, KEY, "requests")
    assert isinstance(found, DeadLetter)
    assert found.code == code, found


@given(st.lists(st.sampled_from(["a", "b:c", "::"]), max_size=3, unique=True), st.sampled_from(["s", "s:t"]))
def test_good_records_of_what_workloads_are_told_are_read_once(names: list[str], source: str) -> None:
    """The slow reading is for what may be wrong."""
    classes = tuple(ClassCounts(name, 1.0, 2.0) for name in sorted(names))
    jobs = tuple(BatchJob(T + n, 5.0) for n in range(len(names)))
    facts = FleetFacts(T, 1, 0, 0, len(names) or None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.records.strict_json.read", lambda _: pytest.fail("read twice"))
        for value in (
            encode_slo(W, source, T, classes),
            encode_batch(W, source, T, jobs),
            encode_fleet(W, source, facts),
            encode_tick(T),
        ):
            assert not isinstance(decode(value, KEY, "requests"), DeadLetter)


@pytest.mark.parametrize(
    ("kind", "told", "old", "new"),
    [
        ("slo", {"classes": {"a": {"good_total": 1, "total": 2}}}, '"total":2', '"total":2,"total":3'),
        ("slo", {"classes": {"a:b": {"good_total": 1, "total": 2}}}, '"total":2', '"total":2,"total":3'),
        ("batch", {"jobs": [{"due_ts_ms": T, "tokens": 2}]}, '"tokens":2', '"tokens":2,"tokens":3'),
        ("outcome", {"command_id": "c", "status": "ready"}, '"status":"ready"', '"status":"ready","status":"ready"'),
    ],
)
def test_a_key_that_stands_twice_is_found_in_every_kind(kind: str, told: dict[str, Any], old: str, new: str) -> None:
    good = record(kind=kind, source="k8s", ts_ms=T, values=..., **told).replace(b" ", b"")
    assert not isinstance(decode(good, KEY, "requests"), DeadLetter)
    bad = good.replace(old.encode(), new.encode())
    assert bad != good
    found = decode(bad, KEY, "requests")
    assert isinstance(found, DeadLetter)
    assert found.code == "schema"
