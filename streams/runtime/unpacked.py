"""How large a compressed batch becomes, told before it is unpacked, in bounded memory.

Kafka bounds a batch by its compressed size, and 20 KB of zstd may hold 600 MB. What is told is never less than what the
batch holds. For gzip and snappy it is exactly that, for LZ4 and zstd more by at most what is open in each block. Bytes
that are not of the codec are not judged here: unpacking refuses them.

Sources: RFC 8878 (zstd: frames, blocks), LZ4 frame format 1.6, the formats of snappy and of its Java streams.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

# Deflate and LZ4 cannot unpack to more than so many times their size.
_DEFLATE_RATIO: Final = 1032
_LZ4_RATIO: Final = 255
_PIECE_BYTES: Final = 1 << 20
_XERIAL_MARK: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_LZ4_MAGIC: Final = 0x184D2204
_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK_BYTES: Final = 128 << 10


# Twice the largest record of HARMONY's own. A batch of telemetry has at most 128 KiB, compressed.
MAX_UNPACKED_BYTES: Final = 64 << 20
# More than any limit of records, and than dead letters keep: of these the beginning is kept.
_OVERSIZE_BYTES: Final = (256 << 10) + 1
_NAME_OF_CODEC: Final = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}


def oversize_value(num_records: int, base_offset: int, num_bytes: int, codec: int) -> bytes:
    """Value of the record that stands for a batch which is not unpacked; too large to be accepted as a record."""
    text = (
        f"{num_records} records from offset {base_offset} on, {num_bytes} bytes of {_NAME_OF_CODEC[codec]}, "
        f"were not unpacked: they hold more than {MAX_UNPACKED_BYTES} bytes"
    )
    return text.encode().ljust(_OVERSIZE_BYTES)


class RecordFields(NamedTuple):
    """A record of message format 2 as it is stored: its size, and its stamp and offset less those of its batch."""

    size: int
    behind_ms: int
    behind: int
    key: bytes | None
    value: bytes | None


def fields_without_headers(
    buffer: bytearray,
    at: int,
    num_records: int,
    decode_varint: Callable[[bytearray, int], tuple[int, int]],
    corrupt: type[Exception],
) -> Iterator[RecordFields]:
    """The records of an unpacked batch from a position on, without their headers.

    Args:
        decode_varint: of the library that reads the batch: a number, and where it ends.
        corrupt: what that library raises at a record that does not hold its key and value; raised here, too.
    """

    def take_bytes(at: int) -> tuple[bytes | None, int]:
        size, at = decode_varint(buffer, at)
        return (None, at) if size < 0 else (bytes(buffer[at : at + size]), at + size)

    for _ in range(num_records):
        size, at = decode_varint(buffer, at)
        end = at + size
        _, at = decode_varint(buffer, at)  # attributes
        behind_ms, at = decode_varint(buffer, at)
        behind, at = decode_varint(buffer, at)
        key, at = take_bytes(at)
        value, at = take_bytes(at)
        if not at <= end <= len(buffer):
            raise corrupt(f"a record of {size} bytes does not hold its key and value")
        yield RecordFields(size, behind_ms, behind, key, value)
        at = end


def unpacks_beyond(codec: int, data: bytes | memoryview, limit: int) -> bool:
    """Whether a batch may hold more than `limit` bytes.

    Args:
        codec: of the batch's attributes; of none nothing grows.
        data: its records, packed.

    >>> unpacks_beyond(GZIP, gzip.compress(bytes(5_000)), 4_999), unpacks_beyond(GZIP, gzip.compress(bytes(9)), 9)
    (True, False)
    """
    sizes = _SIZES.get(codec)
    if sizes is None:
        return False
    if len(data) * _RATIOS.get(codec, limit + 1) <= limit:
        return False
    total = 0
    try:
        for size in sizes(data):
            total += size
            if total > limit:
                return True
    except (OSError, EOFError, zlib.error, struct.error, IndexError):
        pass  # cut off, or not of this codec
    return False


def _gzip_sizes(data: bytes | memoryview) -> Iterator[int]:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
        while piece := unpacked.read(_PIECE_BYTES):
            yield len(piece)


def _snappy_sizes(data: bytes | memoryview) -> Iterator[int]:
    """The lengths that blocks announce, which unpacking holds them to."""
    if bytes(data[: len(_XERIAL_MARK)]) != _XERIAL_MARK:
        yield _varint(data, 0)
        return
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        yield _varint(data, at + 4)
        at += 4 + max(size, 0)


def _lz4_sizes(data: bytes | memoryview) -> Iterator[int]:
    """Of each block the most that it may hold, by its size and by the largest block of its frame."""
    at = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic in _SKIPPABLE_MAGIC:
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
            continue
        if magic != _LZ4_MAGIC:
            return
        flags, most = data[at + 4], 1 << 2 * (data[at + 5] >> 4 & 7) + 8
        at += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while (header := struct.unpack_from("<I", data, at)[0]) != 0:
            size = header & 0x7FFFFFFF
            yield size if size != header else min(size * _LZ4_RATIO, most)
            at += 4 + size + (4 if flags & 16 else 0)
        at += 4 + (4 if flags & 4 else 0)


def _zstd_sizes(data: bytes | memoryview) -> Iterator[int]:
    """Of each block what it holds; of a compressed one the most that it may."""
    at = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic in _SKIPPABLE_MAGIC:
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            return
        described = data[at + 4]
        is_single = described >> 5 & 1
        at += 5 + (1 - is_single) + (0, 1, 2, 4)[described & 3] + (is_single, 2, 4, 8)[described >> 6]
        is_last = 0
        while not is_last:
            header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            yield _ZSTD_BLOCK_BYTES if kind == 2 else size
            at += 3 + (1 if kind == 1 else size)
        at += 4 if described & 4 else 0


def _varint(data: bytes | memoryview, at: int) -> int:
    value = 0
    for shift in range(0, 35, 7):
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value
        at += 1
    return value


_SIZES: Final[dict[int, Callable[[bytes | memoryview], Iterator[int]]]] = {
    GZIP: _gzip_sizes,
    SNAPPY: _snappy_sizes,
    LZ4: _lz4_sizes,
    ZSTD: _zstd_sizes,
}
_RATIOS: Final = {GZIP: _DEFLATE_RATIO, LZ4: _LZ4_RATIO}
