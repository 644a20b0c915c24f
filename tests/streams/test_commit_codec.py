"""Commit records: round trip in chunks, torn tails ignored, corruption and foreign records refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import commit_codec
from streams.commit_codec import CommitAssembler, decode_coarse, encode_coarse, encode_commit
from streams.log import ContractBroken, LogRecord, OutRecord
from streams.window_table import CoarseRow


def log_of(records: list[OutRecord], start: int = 0) -> list[LogRecord]:
    return [LogRecord(start + i, 1_000 + start + i, r.key, r.value) for i, r in enumerate(records)]


@given(bodies=st.lists(st.binary(max_size=400), min_size=1, max_size=4), chunk=st.integers(20, 200))
def test_the_newest_complete_commit_wins(bodies: list[bytes], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_codec, "CHUNK_BYTES", chunk)
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
    _, old = encode_commit("commits", "decide", 0, 1, None, b"old")
    _, torn = encode_commit("commits", "decide", 0, 2, "x", bytes(range(200)))
    _, new = encode_commit("commits", "decide", 0, 2, "x", bytes(range(200)))
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


def test_coarse_rows_round_trip() -> None:
    row = CoarseRow(5, ("a", "b"), np.array([[1, 2], [3, 4]], np.float32), np.array([[True, False], [False, True]]))
    (part,) = encode_coarse(row)
    back = decode_coarse(part)
    assert (back.index, back.workloads) == (5, ("a", "b"))
    assert back.values.tolist() == row.values.tolist()
    assert back.observed.tolist() == row.observed.tolist()
    with pytest.raises(ContractBroken, match=r"pages\.coarse"):
        decode_coarse(b"\x93\x01\x02\x03")
