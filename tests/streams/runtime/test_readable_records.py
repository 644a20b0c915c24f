"""A header whose name is no UTF-8, as brokers take it, costs the record its headers and nobody anything else."""

from __future__ import annotations

import inspect
import random
import tracemalloc
from importlib.metadata import requires
from typing import Any, cast

import pytest
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from streams.records.decode import decode
from streams.records.schema import DeadLetter
from streams.runtime import transport
from streams.runtime.transport import ReadableRecords, tolerate_unreadable_headers
from streams.runtime.unpacked import MAX_UNPACKED_BYTES, unpacks_beyond

STAMP_MS = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None, str]  # key, value, what the name of its header is


class Unreadable(str):
    """A name that some client writes as it is."""

    __slots__ = ()

    def encode(self, *_args: Any, **_kwargs: Any) -> bytes:
        return b"\xff\xfe" + bytes(self, "utf-8")


def batch(base: int, rows: list[Row], codec: int = 0, stamped_by_the_broker: bool = False) -> bytes:
    builder = cast("Any", default_records)._DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, -1, 1 << 20)
    for n, (key, value, name) in enumerate(rows):
        builder.append(n, STAMP_MS + 7 * n, key, value, [] if not name else [(name, b"h"), (name, None)])
    data = bytearray(builder.build())
    data[0:8] = base.to_bytes(8, "big")
    if stamped_by_the_broker:
        data[22] |= 0x08
    return bytes(data)


def fetched(records: Any, first: int = 0) -> Any:
    return fetcher.PartitionRecords(
        TopicPartition("t", 0), records, [], first, None, None, check_crcs=False, isolation_level=0
    )


def read(records: Any, first: int = 0) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in fetched(records, first)]


CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
texts = st.one_of(st.none(), st.binary(max_size=40))
names = st.sampled_from(["", "trace", Unreadable("x"), Unreadable("trace" * 30)])
logs = st.lists(
    st.tuples(
        st.lists(st.tuples(texts, texts, names), min_size=1, max_size=6),
        st.sampled_from(list(CODECS.values())),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(logs, st.integers(0, 8))
def test_records_are_those_of_the_same_log_without_headers(told: list[tuple[list[Row], int, bool]], first: int) -> None:
    def log(named: bool) -> bytes:
        base, parts = 5, []
        for rows, codec, by_broker in told:
            parts.append(batch(base, [(k, v, n if named else "") for k, v, n in rows], codec, by_broker))
            base += len(rows)
        return b"".join(parts)

    # From the middle of a batch, too, as after a restart.
    assert read(ReadableRecords(log(named=True)), first) == read(MemoryRecords(log(named=False)), first)


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_is_read_with_what_a_plain_installation_brings(codec: str) -> None:
    assert read(ReadableRecords(batch(3, [(b"k", b"v" * 500, "")], CODECS[codec]))) == [(3, STAMP_MS, b"k", b"v" * 500)]
    brought = [r for r in requires("harmony-scaler") or () if "extra ==" not in r]
    assert any(r.startswith("cramjam") for r in brought)


def test_headers_that_can_be_read_are_kept() -> None:
    data = batch(0, [(b"k", b"v", "trace")])
    assert [r.headers for r in fetched(ReadableRecords(data))] == [(("trace", b"h"), ("trace", None))]


def test_a_damaged_record_is_still_refused() -> None:
    data = bytearray(batch(0, [(b"k", b"value", Unreadable("x"))]))
    data[61] = 0x7E  # its length, beyond the batch
    with pytest.raises((CorruptRecordException, UnicodeDecodeError)):
        read(ReadableRecords(bytes(data)))


def test_what_the_library_does_with_such_a_name_is_why() -> None:
    with pytest.raises((UnicodeDecodeError, CorruptRecordException)):
        read(MemoryRecords(batch(0, [(b"k", b"v", Unreadable("x"))])))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_unpacks_to_more_than_may_be_is_one_record_that_is_refused(codec: str) -> None:
    bomb = batch(3, [(b"k", bytes(MAX_UNPACKED_BYTES + 1), "")], CODECS[codec])
    before = batch(0, [(b"k", b"v", "")] * 3)
    tracemalloc.start()
    *others, (offset, stamp_ms, _, value) = read(ReadableRecords(before + bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(others) == 3
    assert (offset, stamp_ms) == (3, STAMP_MS)
    assert value is not None
    assert value.startswith(f"1 records from offset 3 on, {len(bomb)} bytes of {codec}, were not unpacked".encode())
    letter = decode(value, None, "requests")
    assert isinstance(letter, DeadLetter)
    assert letter.code == "oversize"
    assert peak < 8 << 20


def test_without_the_bound_it_takes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "unpacks_beyond", lambda *_: False)
    bomb = batch(3, [(b"k", bytes(MAX_UNPACKED_BYTES + 1), "")], CODECS["zstd"])
    ((_, _, _, value),) = read(ReadableRecords(bomb))
    assert value is not None
    assert len(value) > MAX_UNPACKED_BYTES


@given(st.binary(max_size=3_000), st.integers(1, 400), st.sampled_from([1, 2, 3, 4]), st.integers(0, 1 << 20))
def test_what_a_batch_holds_is_never_understated(text: bytes, times: int, codec: int, limit: int) -> None:
    held = batch(0, [(None, text * times, "")], codec)
    unpacked = len(batch(0, [(None, text * times, "")])) - 61
    if held[22] & 7 == codec and unpacked > limit:  # one that does not become smaller is not compressed
        assert unpacks_beyond(codec, held[61:], limit)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_large_batch_of_telemetry_is_not_mistaken(codec: str) -> None:
    """A megabyte of JSON lines as other collectors write them, most of it names."""
    rng = random.Random(1)
    text = b"".join(b'{"name":"vllm:num_requests_running","value":%d}\n' % rng.getrandbits(40) for _ in range(90_000))
    data = batch(0, [(None, text, "")], CODECS[codec])
    assert len(data) > 500_000
    assert not unpacks_beyond(CODECS[codec], data[61:], len(text) + (len(text) >> 2))
    ((_, _, _, value),) = read(ReadableRecords(data))
    assert value == text


@given(st.binary(max_size=300), st.sampled_from([0, 1, 2, 3, 4, 7]))
def test_any_bytes_are_judged(data: bytes, codec: int) -> None:
    assert unpacks_beyond(codec, data, -1) in (True, False)


def test_what_is_fetched_comes_in_our_batches() -> None:
    assert "records = MemoryRecords(part_data[-1])" in inspect.getsource(fetcher.Fetcher._proc_fetch_request)
    tolerate_unreadable_headers()
    assert vars(fetcher)["MemoryRecords"] is ReadableRecords
