"""Records whose headers' names are no UTF-8 can be read: brokers take them, and aiokafka raises at the first of them.

Its consumer then stands before that record in every life, until retention takes it away: one record of any publisher
would end all workers. We read no header of telemetry, so such a record is read without its headers.

Private hooks of aiokafka 0.14 that we rely on (contract tests pin them):

| hook | use |
|---|---|
| `fetcher.MemoryRecords`* | what was fetched comes in our batches |
| `_DefaultRecordBatchPy._maybe_uncompress`*, `_buffer`*, `_pos`*, `_num_records`* | bytes of a batch, unpacked |
| `_DefaultRecordPy`* | a record as its consumers know it |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, cast

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_BEFORE_LENGTH_COUNTS: Final = 12

_library = cast("Any", default_records)


def read_any_headers() -> None:
    """Have all consumers of this process read records whatever their headers are called."""
    cast("Any", fetcher).MemoryRecords = ReadableRecords


class ReadableRecords:
    """What a broker sent of one partition: batches, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._batches, self._data, self._at = MemoryRecords(data), data, 0

    def has_next(self) -> bool:
        return bool(self._batches.has_next())

    def size_in_bytes(self) -> int:
        return int(self._batches.size_in_bytes())

    def next_batch(self) -> Any:
        batch = self._batches.next_batch()
        if batch is None:
            return None
        start = self._at
        self._at += _BEFORE_LENGTH_COUNTS + _LENGTH.unpack_from(self._data, start + _LENGTH_AT)[0]
        return _ReadableBatch(batch, memoryview(self._data)[start : self._at])


class _ReadableBatch:
    """A batch of the library, read again past all headers where one of their names cannot be read."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch, self._data = batch, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        record = None
        try:
            for record in self._batch:
                yield record
        except (UnicodeDecodeError, CorruptRecordException):  # the library's Python form says the latter
            taken = -1 if record is None else record.offset
            yield from (record for record in _past_headers(self._data) if record.offset > taken)


def _past_headers(data: memoryview) -> Iterator[Any]:
    """The records of a batch of message format 2, without their headers."""
    batch = _library._DefaultRecordBatchPy(data)
    batch._maybe_uncompress()
    buffer, at = batch._buffer, batch._pos
    for _ in range(batch._num_records):
        length, at = decode_varint(buffer, at)
        end = at + length
        _, at = decode_varint(buffer, at)  # attributes
        behind_ms, at = decode_varint(buffer, at)
        behind, at = decode_varint(buffer, at)
        key, at = _bytes(buffer, at)
        value, at = _bytes(buffer, at)
        stamp_ms = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + behind_ms
        if not at <= end <= len(buffer):
            raise CorruptRecordException(f"a record of {length} bytes does not hold its key and value")
        at = end
        yield _library._DefaultRecordPy(batch.base_offset + behind, stamp_ms, batch.timestamp_type, key, value, [])


def _bytes(buffer: bytearray, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(buffer, at)
    return (None, at) if size < 0 else (bytes(buffer[at : at + size]), at + size)
