"""Readings in pieces, and the mapper's fold: whatever the order and the cut, the same telemetry, and nothing lost."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.formats.raw_record import NOT_MEASURED
from infra.collect.mapper import RawFold
from infra.collect.mapping import readings as assembly
from infra.collect.mapping.readings import Assembler
from infra.collect.publisher import pack
from streams.log import LogRecord, OutRecord
from streams.records.dead_letters import MAX_LETTERS_PER_STRETCH
from tests.infra.collect.samples import TOPICS, TS_MS, VLLM, packed, reader, readings_of
from tests.infra.collect.writers import samples

RAW = TOPICS.telemetry_raw
STEP_MS = 5_000
LABELS = {"namespace": "prod", "pod": "chat-7b-5d9c7b6f4-x2k8p"}


def adapter_records(scrapes: int = 1) -> list[bytes]:
    """Scrapes five seconds apart as prometheus-kafka-adapter writes them: a record for each sample."""
    return [
        json.dumps({"name": p.name, "labels": p.labels, "value": str(p.value), "timestamp": at_ms}).encode()
        for at_ms in range(TS_MS, TS_MS + scrapes * STEP_MS, STEP_MS)
        for p in samples()
    ]


def fold(hold_s: float = 2.0) -> RawFold:
    return RawFold(Assembler(reader("vllm"), hold_s), TOPICS)


@given(st.randoms(use_true_random=False))
def test_pieces_in_any_order_make_the_whole(rng: random.Random) -> None:
    values = adapter_records()
    rng.shuffle(values)
    folded = fold()
    for offset, value in enumerate(values):
        folded.fold(RAW, LogRecord(offset, TS_MS, None, value), rng.randrange(3), now_s=1.0)
    assert folded.take(2.9) == []
    assert folded.take(3.0) == pack(readings_of(VLLM, reader("vllm"), **LABELS), TOPICS)
    assert folded.take(None) == []


def test_a_reading_waits_from_its_first_piece_and_later_ones_for_themselves() -> None:
    values = adapter_records(2)
    half = len(values) // 2
    folded = fold()
    for offset, value in enumerate(values):
        folded.fold(RAW, LogRecord(offset, TS_MS, None, value), 0, now_s=0.0 if offset < half else 1.0)
    assert len(folded.take(2.0)) == 1
    assert folded.committable({(RAW, 0): len(values)}) == {(RAW, 0): half}
    assert len(folded.take(3.0)) == 1
    assert folded.committable({(RAW, 0): len(values)}) == {(RAW, 0): len(values)}


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_crash_anywhere_loses_nothing(rng: random.Random, crashes: int) -> None:
    """Killed again and again, each life reads from the last commit: the first record of a time is whole.

    What comes after the first is a duplicate, which stage 1 drops.
    """
    values = adapter_records(4)
    per_scrape = len(values) // 4
    log = [(n % 2, n // 2, value, float(n // per_scrape)) for n, value in enumerate(values)]
    committed = {0: 0, 1: 0}
    first: dict[int, object] = {}
    for life in range(crashes + 1):
        folded, positions, last = fold(0.5), {(RAW, p): o for p, o in committed.items()}, life == crashes
        for partition, offset, value, now_s in log if last else log[: rng.randrange(len(log))]:
            if offset < positions[RAW, partition]:
                continue
            folded.fold(RAW, LogRecord(offset, TS_MS, None, value), partition, now_s)
            positions[RAW, partition] = offset + 1
            if rng.random() < 0.1:
                note(first, folded.take(now_s))
                committed = {p: o for (_, p), o in folded.committable(positions).items()}
        if last:
            note(first, folded.take(None))
    whole: dict[int, object] = {}
    note(whole, pack(readings_of(VLLM, reader("vllm"), **LABELS), TOPICS))
    assert first == {TS_MS + STEP_MS * n: whole[TS_MS] for n in range(4)}


def note(first: dict[int, object], records: list[OutRecord]) -> None:
    """Keep the first that was said of each time."""
    for record in records:
        body = json.loads(record.value or b"")
        for row, ts_ms in enumerate(body["ts_ms"]):
            values = {name: column[row] for name, column in body["values"].items()}
            first.setdefault(ts_ms, (body["workload"], body["source"][row], values, body["hist"]["ttft_s"][row]))


def test_what_has_pieces_of_a_log_that_another_takes_over_is_dropped() -> None:
    values = adapter_records(2)
    folded = fold()
    for offset, value in enumerate(values):
        folded.fold(RAW, LogRecord(offset, TS_MS, None, value), 0 if offset < len(values) // 2 else 1, 0.0)
    folded.forget((RAW, 1))
    (record,) = folded.take(None)
    assert json.loads(record.value or b"")["ts_ms"] == [TS_MS]


def test_what_is_passed_over_is_counted_whether_or_not_the_record_holds_more() -> None:
    folded = fold()
    unused = {"name": "x", "kind": "absolute", "distribution": {}}
    blank = {"name": "x", "kind": "absolute", "gauge": {"value": None}}
    for offset, value in enumerate((unused, [unused, blank], blank)):
        folded.fold(RAW, LogRecord(offset, TS_MS, None, json.dumps(value).encode()), 0, now_s=0.0)
    assert folded.passed_over == {"distribution": 2, NOT_MEASURED: 2}
    assert (folded.refused, folded.points) == ({"schema": 1}, 2)


def test_bad_records_become_dead_letters_with_their_place_and_go_no_further() -> None:
    folded = fold()
    for offset, value in enumerate((b"{", b'{"a":1}', b"\x00\x01", None)):
        folded.fold(RAW, LogRecord(offset, TS_MS, b"k", value), 3, 0.0)
    letters = folded.take_letters()
    assert [(x.topic, x.key, x.value) for x in letters] == [
        (TOPICS.dead_letters, b"k", value) for value in (b"{", b'{"a":1}', b"\x00\x01")
    ]
    headers = [dict(x.headers) for x in letters]
    assert [(h["reason"], h["offset"]) for h in headers] == [(b"decode", b"0"), (b"schema", b"1"), (b"decode", b"2")]
    assert all((h["topic"], h["partition"]) == (RAW.encode(), b"3") for h in headers)
    assert folded.refused == {"decode": 2, "schema": 1}
    assert folded.take_letters() == []
    assert folded.committable({(RAW, 3): 4}) == {(RAW, 3): 4}


def test_a_flood_of_bad_records_is_sampled() -> None:
    folded = fold()
    for offset in range(1000):
        folded.fold(RAW, LogRecord(offset, TS_MS, None, b"?{"), 0, 0.0)
    assert MAX_LETTERS_PER_STRETCH <= len(folded.take_letters()) < 200
    assert folded.refused.total() == 1000


def test_records_without_a_workload_hold_nothing_back() -> None:
    folded = fold()
    value = json.dumps({"name": "vllm:num_requests_running", "labels": {}, "value": "1"}).encode()
    folded.fold(RAW, LogRecord(7, TS_MS, None, value), 0, 0.0)
    assert folded.take(None) == []
    assert folded.committable({(RAW, 0): 8}) == {(RAW, 0): 8}


def test_the_oldest_go_out_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    by = reader("vllm", workload="w")
    assembler = Assembler(by, 1e9)
    points = [p._replace(ts_ms=TS_MS + n) for n in range(5) for p in samples()[:1]]
    for p in points:
        assembler.add(p, 0.0)
    assert assembler.due(1.0) == []
    monkeypatch.setattr(assembly, "_MOST_OPEN", 3)
    assert [r.ts_ms for r in assembler.due(1.0)] == [TS_MS, TS_MS + 1]
    assert len(assembler) == 3
    assert len(packed(assembler.everything())) == 1
