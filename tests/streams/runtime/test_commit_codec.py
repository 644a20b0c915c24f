"""Commit records: round trip in chunks, torn tails ignored, corruption and foreign records refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.log import ContractBroken, LogRecord, OutRecord
from streams.runtime import commits as commit_codec
from streams.runtime.commits import CommitAssembler, CommitChain, encode_commit
from streams.windows import coarse
from streams.windows.coarse import CoarseRow, decode_coarse, encode_coarse


def log_of(records: list[OutRecord], start: int = 0) -> list[LogRecord]:
    return [LogRecord(start + i, 1_000 + start + i, r.key, r.value) for i, r in enumerate(records)]


@given(bodies=st.lists(st.binary(max_size=400), min_size=1, max_size=4), chunk=st.integers(20, 200))
def test_the_newest_complete_commit_wins(bodies: list[bytes], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "CHUNK_BYTES", chunk)
        log, previous = [], None
        for n, body in enumerate(bodies):
            digest, records = encode_commit("commits", "forecast", 3, n, previous, body)
            assert all(len(r.value or b"") < chunk + 150 for r in records)
            log += records
            previous = digest
    assembler = CommitAssembler("forecast", 3)
    for record in log_of(log):
        assembler.feed(record)
    assert assembler.newest is not None
    assert (assembler.newest.body, assembler.newest.sequence) == (bodies[-1], len(bodies) - 1)


def test_a_torn_commit_leaves_the_one_before_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_codec, "CHUNK_BYTES", 10)
    digest, old = encode_commit("commits", "decide", 0, 1, None, b"old")
    _, torn = encode_commit("commits", "decide", 0, 2, digest, bytes(range(200)))
    _, new = encode_commit("commits", "decide", 0, 2, digest, bytes(range(200)))
    assembler = CommitAssembler("decide", 0)
    for record in log_of([*old, *torn[:-1]]):
        assembler.feed(record)
    assert assembler.newest is not None
    assert assembler.newest.body == b"old"
    for record in log_of(new, start=50):  # the next life writes it again, from its first chunk
        assembler.feed(record)
    assert assembler.newest.body == bytes(range(200))


def test_corruption_and_foreign_records_are_named() -> None:
    _, (record,) = encode_commit("commits", "decide", 0, 1, None, b"body" * 50)
    value = record.value or b""
    with pytest.raises(ContractBroken, match=r"corrupt|digest|not a commit"):
        CommitAssembler("decide", 0).feed(LogRecord(7, 0, record.key, value[:-9] + b"\x00" * 9))
    with pytest.raises(ContractBroken, match="offset 8 is not a commit record"):
        CommitAssembler("decide", 0).feed(LogRecord(8, 0, record.key, b"hello"))
    other = CommitAssembler("forecast", 0)
    other.feed(LogRecord(9, 0, record.key, value))
    assert other.newest is None


def chain(count: int) -> list[list[OutRecord]]:
    written = CommitChain("commits", "decide", 0)
    return [written.append(b"body %d" % n * 40) for n in range(count)]


def feed(*commits: list[OutRecord]) -> CommitAssembler:
    assembler = CommitAssembler("decide", 0, "harmony.commits")
    for record in log_of([r for records in commits for r in records], start=100):
        assembler.feed(record)
    return assembler


def test_a_commit_that_was_lost_is_seen() -> None:
    commits = chain(4)
    match = r"harmony\.commits/0: offset 102 ends commit 4 of the decide stage, which does not follow on commit 2"
    with pytest.raises(ContractBroken, match=match):
        feed(commits[0], commits[1], commits[3])
    _, strange = encode_commit("commits", "decide", 0, 3, "another", b"x")
    with pytest.raises(ContractBroken, match="the chain is torn"):
        feed(commits[0], commits[1], strange)
    assert feed(*commits[2:]).newest is not None, "what lies before the first one read cannot be judged"


@given(st.data())
def test_late_and_repeated_commits_of_a_paused_writer_change_nothing(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_codec, "CHUNK_BYTES", 12)
        commits = chain(6)
    log: list[OutRecord] = []
    for n, records in enumerate(commits):
        log += records
        late = data.draw(st.lists(st.integers(0, n), max_size=3))
        for k in late:
            cut = data.draw(st.integers(0, len(commits[k])))
            log += commits[k][:cut]
    newest = feed(log).newest
    assert newest is not None
    assert newest.sequence == 6


def test_the_next_life_goes_on_with_the_chain() -> None:
    first = CommitChain("commits", "decide", 0)
    old = [first.append(b"1"), first.append(b"2")]
    newest = feed(*old).newest
    assert newest is not None
    second = CommitChain("commits", "decide", 0)
    second.follow(newest)
    new = second.append(b"3")
    assert new == first.append(b"3")
    found = feed(*old, new).newest
    assert found is not None
    assert (found.sequence, found.previous, found.body) == (3, newest.digest, b"3")


@pytest.mark.parametrize("key", [None, b"", b"somebody", b"decide/x", b"forecast"])
def test_a_record_of_somebody_else_is_refused(key: bytes | None) -> None:
    with pytest.raises(ContractBroken, match=r"harmony\.commits/0: offset 7 is not a commit record"):
        CommitAssembler("decide", 0, "harmony.commits").feed(LogRecord(7, 0, key, b"hello"))


def test_coarse_rows_round_trip() -> None:
    row = CoarseRow(
        5, ("a", "b"), ("x", "y"), np.array([[1, 2], [3, 4]], np.float32), np.array([[True, False], [False, True]])
    )
    (part,) = encode_coarse(row)
    back = decode_coarse(part)
    assert (back.index, back.workloads, back.indicators) == (5, ("a", "b"), ("x", "y"))
    assert back.values.tolist() == row.values.tolist()
    assert back.observed.tolist() == row.observed.tolist()
    with pytest.raises(ContractBroken, match=r"pages\.coarse"):
        decode_coarse(b"\x93\x01\x02\x03")


def coarse_row(workloads: list[str]) -> CoarseRow:
    values = np.arange(3 * len(workloads), dtype=np.float32).reshape(-1, 3)
    return CoarseRow(5, tuple(workloads), ("x", "y", "z"), values, values % 2 == 0)


@given(st.lists(st.text("a\u00e9\u6f22\U0001f600", min_size=1, max_size=20), max_size=60), st.integers(100, 400))
def test_coarse_rows_are_cut_by_their_bytes(workloads: list[str], chunk: int) -> None:
    row = coarse_row(workloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "CHUNK_BYTES", chunk)
        parts = encode_coarse(row)
    frame, frame_of_name = 40, 2
    assert all(len(part) <= chunk + frame + frame_of_name * len(workloads) for part in parts)
    back = [decode_coarse(part) for part in parts]
    assert tuple(name for part in back for name in part.workloads) == row.workloads
    assert np.concatenate([part.values for part in back]).tolist() == row.values.tolist()
    assert np.concatenate([part.observed for part in back]).tolist() == row.observed.tolist()
    assert all(part.workloads for part in back) or len(back) == 1


def test_a_broker_takes_ten_minutes_of_the_longest_names() -> None:
    """1,048,588 bytes is what a broker takes unless it is told otherwise."""
    longest = encode_coarse(coarse_row([f"{n:04d}" + "\U0001f600" * 124 for n in range(9_000)]))
    assert max(map(len, longest)) < 1_000_000
    short = encode_coarse(coarse_row([f"{n:04d}" for n in range(9_000)]))
    assert [len(decode_coarse(part).workloads) for part in short] == [5_000, 4_000]
