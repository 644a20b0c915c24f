"""The ingest kernel's rules, one at a time, in numbers that can be checked by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import MAX_CONTROLS_PER_PAGE, IngestKernel
from streams.log import ContractBroken, LogRecord
from streams.records.dead_letters import MAX_CUT_BYTES, MAX_LETTER_BYTES, MAX_LETTERS_PER_STRETCH, STRETCH_OFFSETS
from streams.records.facts import Control, FleetFacts, OutcomeFact
from streams.records.schema import encode_control, encode_fleet, encode_outcome, encode_packed, encode_tick
from tests.streams.ingest.ingest_log import CONFIG, T0, TOPICS, Log, cell, facts, slots

# Time.


def test_a_slot_closes_when_stream_time_reaches_its_end_and_the_grace() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    assert (log.kernel.stream_time_ms, slots(log)) == (T0 + 100, [])
    log.tick(1499)
    assert slots(log) == []
    log.tick(1500)
    assert slots(log) == [0]
    assert log.pages[-1].end_offset == 2
    assert log.pages[-1].end_stamp_ms == T0 + 1500


def test_the_first_event_time_closes_nothing_and_makes_no_page() -> None:
    log = Log()
    log.tick(50_000)
    assert log.pages == []
    log.tick(51_000)
    assert len(log.pages) == 1
    assert log.pages[0].prev is None


def test_a_tick_does_not_run_ahead_of_the_broker() -> None:
    log = Log()
    log.tick(0)
    log.tick(9_000, stamp=1200)
    assert log.kernel.stream_time_ms == T0 + 1200


@pytest.mark.parametrize(("ahead", "future"), [(200, 0), (201, 1), (60_000, 1), (10**14, 1)])
def test_a_clock_ahead_of_the_brokers_moves_nothing(ahead: int, future: int) -> None:
    log = Log()
    log.tick(0)
    log.sample(ahead, {"num_requests_running": 1}, stamp=0)
    assert (log.kernel.counters.future, log.kernel.counters.dead) == (future, future)
    assert log.kernel.stream_time_ms == (T0 if future else T0 + ahead)
    letters = [dict(r.headers) for e in log.emissions for group in e.outputs for r in group]
    assert [letter["reason"] for letter in letters] == [b"future"] * future


def test_one_fast_sample_in_a_pack_loses_the_pack_and_moves_nothing() -> None:
    log = Log()
    log.tick(0)
    log.put(encode_packed("requests", "w", ["a", "b"], [T0, T0 + 300], {"num_requests_running": [1, 2]}), 0)
    assert (log.kernel.counters.future, log.kernel.counters.samples) == (1, 0)
    assert log.kernel.stream_time_ms == T0


def test_a_record_is_tested_against_the_stream_time_before_it() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    # Its own second sample would have closed slot 0: both are in.
    body = encode_packed("requests", "w", ["a", "a"], [T0 + 200, T0 + 2600], {"num_requests_running": [3, 5]})
    log.put(body, 2600)
    assert log.kernel.counters.late == 0
    assert cell(log.pages[-2], "engine.running") == 2.0


def test_late_samples_are_counted_and_change_nothing() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.tick(1500)
    log.sample(200, {"num_requests_running": 9}, stamp=1600)
    log.tick(2500)
    assert log.kernel.counters.late == 1
    assert log.pages[-1].workloads == ()


def test_silence_gives_empty_pages_at_most_the_last_l() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.tick(100_500)
    assert slots(log) == [0, 96, 97, 98, 99]
    assert [len(p.workloads) for p in log.pages] == [1, 0, 0, 0, 0]
    stored = log.stored
    assert [p.page.prev for p in stored[1:]] == [p.page.slot for p in stored[:-1]]
    assert [p.page.prev_digest for p in stored[1:]] == [p.digest for p in stored[:-1]]


def test_facts_move_stream_time_too() -> None:
    log = Log()
    log.tick(0)
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 1700, 1, 0, 0)), 1700)
    assert slots(log) == [0]
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 2700, "c", "ready")), 2700)
    assert slots(log) == [0, 1]


def test_a_duplicate_is_the_same_source_and_time_and_the_first_wins() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1})
    log.sample(100, {"num_requests_running": 9})
    log.sample(100, {"num_requests_running": 5}, source="b")
    log.tick(1500)
    assert log.kernel.counters.duplicate == 1
    assert log.cells("engine.running")[-1] == 6.0


def test_an_offset_that_was_folded_is_refused() -> None:
    log = Log()
    log.tick(0)
    with pytest.raises(ContractBroken, match=r"offset 0 came after 0"):
        log.kernel.fold(log.records)


# Facts.


def test_facts_of_a_workload() -> None:
    log = Log()
    log.sample(100, {"num_requests_running": 1}, source="a")
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 300, 3, 1, 0, 4)), 300)
    log.put(encode_fleet("w", "k8s", FleetFacts(T0 + 200, 2, 2, 0, 4)), 300)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 400, "c-2", "ready", 3, 61.0)), 400)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 350, "c-1", "applied")), 400)
    log.put(encode_outcome("w", "k8s", OutcomeFact(T0 + 350, "c-1", "applied")), 400)
    log.put(encode_fleet("idle", "k8s", FleetFacts(T0 + 500, 0, 0, 0)), 500, "idle")
    log.tick(1500)
    page = log.pages[-1]
    assert page.workloads == ("idle", "w")
    told = facts(page)
    assert told.fleet == FleetFacts(T0 + 300, 3, 1, 0, 4)
    assert [o.command_id for o in told.outcomes] == ["c-1", "c-2"]
    assert (told.num_samples, told.newest_ts_ms) == (1, T0 + 100)
    assert (facts(page, "idle").num_samples, facts(page, "idle").newest_ts_ms) == (0, T0 + 500)
    assert not page.observed[0].any()
    assert log.kernel.counters.duplicate == 1


def test_sources_are_known_for_the_silence_steps() -> None:
    log = Log(replace(CONFIG, source_silence_steps=2))
    log.sample(0, {}, source="a")
    for slot in range(4):
        log.sample(1000 * slot + 1, {}, source="b")
    log.tick(4500)
    assert [(facts(p).sources_seen, facts(p).sources_known) for p in log.pages] == [(2, 2), (1, 2), (1, 1), (1, 1)]


def test_controls_ride_with_the_next_page_and_move_no_time() -> None:
    log = Log(replace(CONFIG, controls_in_telemetry=True))
    log.tick(500)
    control = Control(control_id="c-1", ts_ms=T0 + 10**9, action="pin", workload="w", replicas=3, by="me")
    log.put(encode_control(control), 10, None)
    late = Control(control_id="c-2", ts_ms=T0 - 10**9, action="pause")
    log.put(encode_control(late), 20, None)
    assert log.kernel.stream_time_ms == T0 + 500
    log.tick(2500)
    assert [p.controls for p in log.pages] == [(control, late), ()]


def test_control_records_in_telemetry_are_refused_unless_the_settings_allow_them() -> None:
    log = Log()
    log.tick(500)
    log.put(encode_control(Control("c-1", T0, "pause")), 10, None)
    log.tick(2500)
    assert [p.controls for p in log.pages] == [(), ()]
    assert log.kernel.dead_letter_counts == {"control": 1}
    (letter,) = [out for e in log.emissions for group in e.outputs for out in group]
    assert dict(letter.headers)["reason"] == b"control"
    assert b"controls topic" in dict(letter.headers)["detail"]


def test_a_page_holds_a_bounded_number_of_control_records_and_the_rest_is_counted() -> None:
    log = Log(replace(CONFIG, controls_in_telemetry=True))
    log.tick(500)
    for number in range(MAX_CONTROLS_PER_PAGE + 7):
        log.put(encode_control(Control(f"c-{number}", T0, "pin", "w", replicas=1)), 10, None)
    log.tick(2500)
    log.put(encode_control(Control("c-later", T0, "pause")), 2500, None)
    log.tick(3500)
    assert [len(p.controls) for p in log.pages] == [MAX_CONTROLS_PER_PAGE, 0, 1]
    assert [p.counters.refused for p in log.pages] == [7, 7, 7]


# Limits.


def test_only_new_workloads_are_refused_and_old_ones_make_room() -> None:
    log = Log(replace(CONFIG, max_workloads=2, context_steps=2))
    log.sample(0, {}, workload="b")
    log.sample(1, {}, workload="c")
    log.sample(2, {}, workload="a")
    log.sample(1001, {}, workload="a")
    log.sample(1002, {}, workload="c")
    for slot in range(2, 5):
        log.sample(1000 * slot, {}, workload="a")
        log.sample(1000 * slot, {}, workload="c")
    log.tick(5500)
    assert [p.workloads for p in log.pages] == [("b", "c"), ("c",), ("c",), ("a", "c"), ("a", "c")]
    assert log.kernel.counters.refused == 3


def test_a_flood_of_names_is_bounded_and_known_ones_are_served() -> None:
    log = Log(replace(CONFIG, max_workloads=3))
    log.sample(0, {"num_requests_running": 1}, workload="known")
    log.tick(1500)
    for i in range(50):
        log.sample(1600, {}, workload=f"flood-{i}")
    log.sample(1700, {"num_requests_running": 2}, workload="known")
    log.tick(2500)
    assert log.pages[-1].workloads == ("flood-0", "flood-1", "known")
    assert log.kernel.counters.refused == 48


# Dead letters.


def test_dead_letters_keep_their_bytes_and_say_why() -> None:
    log = Log()
    log.put(b"{bad", 5, "w")
    (emission,) = log.emissions
    ((letter,),) = emission.outputs
    assert (letter.topic, letter.key, letter.value, letter.partition) == (TOPICS.dead_letters, b"w", b"{bad", None)
    headers = dict(letter.headers)
    assert headers.pop("detail").decode().startswith("not JSON")
    assert headers == {"reason": b"decode", "topic": b"harmony.telemetry.requests", "partition": b"1", "offset": b"0"}
    assert emission.commits == ()
    assert emission.resume_offset == 0
    assert log.kernel.dead_letter_counts == {"decode": 1}


def test_of_what_no_broker_would_take_back_the_beginning_is_kept() -> None:
    """A record that came compressed may be a thousand times as large as the topic's limit."""
    log = Log()
    log.put(b"\0" * (48 << 20), 5, "w" * (1 << 20))
    log.put(b"{" * (MAX_LETTER_BYTES - 9), 6)
    ((large,),), ((whole,),) = (emission.outputs for emission in log.emissions)
    assert (large.key, large.value) == (b"w" * MAX_CUT_BYTES, b"\0" * MAX_CUT_BYTES)
    assert dict(large.headers)["cut"] == b"%d" % (49 << 20)
    assert dict(large.headers)["reason"] == b"oversize"
    assert whole.value == b"{" * (MAX_LETTER_BYTES - 9)
    assert "cut" not in dict(whole.headers)


def test_a_flood_is_sampled_by_offset_however_it_is_batched() -> None:
    records = [LogRecord(i, T0, None, b"bad") for i in range(3 * STRETCH_OFFSETS)]
    offsets = []
    for size in (1, 7, len(records)):
        kernel = IngestKernel(0, "gpu", CONFIG, DEFAULT_CATALOGUE, TOPICS)
        out = [e for i in range(0, len(records), size) for e in kernel.fold(records[i : i + size])]
        offsets.append([int(dict(r.headers)["offset"]) for e in out for group in e.outputs for r in group])
        assert kernel.counters.dead == len(records)
    assert offsets[0] == offsets[1] == offsets[2]
    assert 3 * MAX_LETTERS_PER_STRETCH < len(offsets[0]) < 4 * MAX_LETTERS_PER_STRETCH


def test_dead_letters_go_out_no_later_than_the_page_that_covers_them() -> None:
    log = Log()
    log.tick(500)
    records = [LogRecord(1, T0, b"w", b"bad"), LogRecord(2, T0 + 1500, None, encode_tick(T0 + 1500))]
    (emission,) = log.kernel.fold([*records, LogRecord(3, T0 + 1501, b"w", None)])
    assert [len(group) for group in emission.outputs] == [1]
    assert len(emission.commits) == 1
    assert emission.resume_offset == log.kernel.resume_offset == 2
    assert (log.kernel.counters.tombstones, log.kernel.next_offset) == (1, 4)


# Laws.

rows = st.lists(
    st.tuples(
        st.integers(0, 2999),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["u", "w"]),
        st.floats(0, 1e9),
        st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=25,
    unique_by=lambda r: (r[0], r[1], r[2]),
)


@settings(max_examples=40)
@given(rows, st.randoms(use_true_random=False))
def test_order_within_the_grace_does_not_matter(
    told: list[tuple[int, str, str, float, int]], rng: random.Random
) -> None:
    config = StreamConfig(step_ms=1000, grace_ms=3000, skew_ms=3000, context_steps=4)
    bodies: list[dict[str, Any]] = []
    for order in (told, sorted(told), rng.sample(told, len(told))):
        log = Log(config)
        log.tick(0)
        for ts, source, workload, gauge, counter in order:
            values = {"num_requests_running": gauge, "requests_started_total": float(counter)}
            log.sample(ts, values, stamp=0, workload=workload, source=source)
        log.tick(6000)
        bodies.append(
            {str(p.slot): [p.workloads, p.values.tobytes(), p.observed.tobytes(), p.facts, p.series] for p in log.pages}
        )
    assert bodies[0] == bodies[1] == bodies[2]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=30) | st.just(b'{"v":1,"kind":"tick","ts_ms":1763636400500}'), max_size=20))
def test_garbage_never_raises_and_is_all_counted(values: list[bytes]) -> None:
    kernel = IngestKernel(0, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS)
    kernel.fold([LogRecord(i, T0 + 500, None, value) for i, value in enumerate(values)])
    assert kernel.counters.records == len(values)
    assert kernel.counters.dead == sum(not value.startswith(b'{"v":1') for value in values)


def test_zero_is_written_as_zero() -> None:
    log = Log()
    log.put(
        json.dumps(
            {
                "v": 1,
                "kind": "requests",
                "workload": "w",
                "source": "a",
                "ts_ms": T0,
                "values": {"num_requests_running": -0.0},
            }
        ).encode(),
        0,
    )
    log.tick(1500)
    assert not np.signbit(log.pages[-1].values).any()
