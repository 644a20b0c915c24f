"""Records of any publisher, read with kafka-python in bounded memory, as workers read them with aiokafka.

A batch that unpacks to more than `MAX_UNPACKED_BYTES` is not unpacked: one record stands for it. A batch with a header
name that is not UTF-8 is read without headers. The library unpacks the one whatever its size, and raises at the other.
It also lacks the libraries for three of the four compressions, which aiokafka brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from kafka.errors import CorruptRecordError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

from streams.runtime.unpacked import (
    GZIP,
    LZ4,
    MAX_UNPACKED_BYTES,
    SNAPPY,
    ZSTD,
    fields_without_headers,
    oversize_value,
    unpacks_beyond,
)

_UNPACK: Final[dict[int, Callable[[bytes], bytes]]] = {
    GZIP: gzip_decode,
    SNAPPY: snappy_decode,
    LZ4: lz4_decode,
    ZSTD: zstd_decode,
}


def read_within_bounds() -> None:
    """Let all consumers of kafka-python in this process read so."""
    cast("Any", memory_records).DefaultRecordBatch = ReadableBatch


class ReadableBatch(DefaultRecordBatch):
    """A batch of message format 2, as of the library, whose bytes may be those of a hostile publisher."""

    _buffer: bytearray
    _pos: int
    _decompressed: bool

    def __iter__(self) -> Iterator[Any]:
        with memoryview(self._buffer) as data:
            codec, num_bytes, start = self.compression_type, len(data), self.HEADER_STRUCT.size
            if unpacks_beyond(codec, data[start:], MAX_UNPACKED_BYTES):
                value = oversize_value(self.records_count, self.base_offset, num_bytes, codec)
                yield self._record(self.base_offset, self.max_timestamp, None, value, num_bytes)
                return
        self._maybe_uncompress()
        start, last_offset = self._pos, -1
        try:
            while self._next_record_index < self.records_count:
                record = next(self)
                last_offset = record.offset
                yield record
        except CorruptRecordError:
            yield from (record for record in self._records_without_headers(start) if record.offset > last_offset)

    def _maybe_uncompress(self) -> None:
        unpack = None if self._decompressed else _UNPACK.get(self.compression_type)
        if unpack is None:
            super()._maybe_uncompress()
        else:
            self._buffer, self._pos = bytearray(unpack(bytes(self._buffer[self._pos :]))), 0
            self._decompressed = True

    def _records_without_headers(self, at: int) -> Iterator[Any]:
        found = fields_without_headers(self._buffer, at, self.records_count, decode_varint, CorruptRecordError)
        for record in found:
            stamp_ms = self.max_timestamp if self.timestamp_type else self.first_timestamp + record.behind_ms
            yield self._record(self.base_offset + record.behind, stamp_ms, record.key, record.value, record.size)

    def _record(self, offset: int, stamp_ms: int, key: bytes | None, value: bytes | None, size: int) -> Any:
        return DefaultRecord(size, offset, stamp_ms, self.timestamp_type, key, value, [])
