"""What `harmony doctor` and its like read with kafka-python is what a worker reads, in memory as bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords, memory_records
from kafka.record.default_records import DefaultRecordBatch

from infra.kafka import readable
from infra.kafka.readable import ReadableBatch, read_within_bounds
from streams.runtime.transport import ReadableRecords
from streams.runtime.unpacked import MAX_UNPACKED_BYTES
from tests.streams.runtime.test_readable_records import CODECS, STAMP_MS, Row, Unreadable, batch, logs
from tests.streams.runtime.test_readable_records import read as read_by_worker


@pytest.fixture(autouse=True)
def _own_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", ReadableBatch)


def read(data: bytes) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
    for found in MemoryRecords(data):
        for record in found:
            yield record.offset, record.timestamp, record.key, record.value


@given(logs)
def test_records_are_those_of_a_worker(told: list[tuple[list[Row], int, bool]]) -> None:
    data, base = b"", 0
    for rows, codec, stamped in told:
        data += batch(base, rows, codec, stamped)
        base += len(rows)
    assert list(read(data)) == read_by_worker(ReadableRecords(data))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_unpacks_to_more_than_may_be_is_one_record(codec: str) -> None:
    bomb = batch(3, [(b"k", bytes(MAX_UNPACKED_BYTES + 1), "")], CODECS[codec])
    data = batch(0, [(b"k", b"v", "")] * 3) + bomb
    tracemalloc.start()
    *others, (offset, stamp_ms, _, value) = read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(others) == 3
    assert (offset, stamp_ms) == (3, STAMP_MS)
    assert value is not None
    assert value.startswith(f"1 records from offset 3 on, {len(bomb)} bytes of {codec}, were not unpacked".encode())
    assert peak < 8 << 20


def test_without_the_bound_it_takes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "unpacks_beyond", lambda *_: False)
    ((*_, value),) = read(batch(3, [(b"k", bytes(MAX_UNPACKED_BYTES + 1), "")], CODECS["zstd"]))
    assert value is not None
    assert len(value) > MAX_UNPACKED_BYTES


def test_a_damaged_record_is_still_refused() -> None:
    data = bytearray(batch(0, [(b"k", b"v", "")]))
    data[61] = 0x7E  # longer than the batch
    with pytest.raises(CorruptRecordError):
        list(read(bytes(data)))


def test_every_consumer_of_the_process_reads_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_records, "DefaultRecordBatch", DefaultRecordBatch)  # whatever this process set before
    data = batch(0, [(b"k", b"v", Unreadable("x"))])
    with pytest.raises((UnicodeDecodeError, CorruptRecordError)):
        list(read(data))
    read_within_bounds()
    assert list(read(data)) == [(0, STAMP_MS, b"k", b"v")]
