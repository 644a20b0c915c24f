"""The binary form of packed samples: a JSON header, then columns as they lie in memory (docs/formats).

    "HTB1" | u32 header bytes | header | source index u16 [n] | ts_ms i64 [n] | one float64 [n] per name

All numbers are little-endian, and NaN is a missing cell. The header names the columns.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from streams.catalogue import Source
from streams.log import UNREADABLE
from streams.records import strict_json
from streams.records.limits import refuse_instant
from streams.records.samples import Floats, Ints
from streams.records.schema import MAX_NUMBER, VERSION
from streams.records.strict_json import MalformedError

MAGIC = b"HTB1"
_LENGTH = struct.Struct("<I")
_START = len(MAGIC) + _LENGTH.size
_MAX_SOURCES = 1 << 16


class BinaryHeader(msgspec.Struct, forbid_unknown_fields=True):
    """Names of the columns: `sources` are those that the source index points to, `names` those of the values."""

    v: int
    kind: str
    workload: str
    sources: list[str]
    names: list[str]
    n: int


class BinarySamples(NamedTuple):
    """A record as read: `source_of` [n], `ts_ms` [n], `values` [names, n]."""

    header: BinaryHeader
    source_of: Ints
    ts_ms: Ints
    values: Floats


_decode_header = msgspec.json.Decoder(BinaryHeader).decode


def encode_binary(
    kind: Source,
    workload: str,
    sources: Sequence[str],
    ts_ms: Sequence[int],
    values: Mapping[str, ArrayLike],
) -> bytes:
    """Samples of one workload as one record value: columns aligned with `sources` and `ts_ms`; NaN is a missing cell.

    Raises:
        ValueError: columns of different lengths, no sample, or a number that is infinite.
    """
    places = {source: place for place, source in enumerate(dict.fromkeys(sources))}
    columns = [np.asarray(column, "<f8") for column in values.values()]
    n = len(sources)
    if not n or len(places) > _MAX_SOURCES or any(c.shape != (n,) for c in columns) or len(ts_ms) != n:
        raise ValueError(f"a binary record needs a sample and equally long columns, got {n} sources")
    if any(np.isinf(column).any() for column in columns):
        raise ValueError("an infinite number has no place in telemetry; use NaN where nothing was measured")
    header = msgspec.json.encode(BinaryHeader(VERSION, kind, workload, list(places), list(values), n))
    index = np.array([places[source] for source in sources], "<u2")
    parts = [index.tobytes(), np.array(ts_ms, "<i8").tobytes(), *(column.tobytes() for column in columns)]
    return b"".join((MAGIC, _LENGTH.pack(len(header)), header, *parts))


def read_binary(value: bytes) -> BinarySamples:
    """Read a record value that starts with `MAGIC`.

    Raises:
        MalformedError: `decode`, `schema`, `version`, `non_finite`, `range` or `future`.
    """
    if len(value) < _START:
        raise MalformedError("decode", "the binary header is cut off")
    end = _START + _LENGTH.unpack_from(value, len(MAGIC))[0]
    if len(value) < end:
        raise MalformedError("decode", "the binary header is cut off")
    header = _read_header(value[_START:end])
    if header.v != VERSION:
        raise MalformedError("version", f"v is {header.v}, this reader knows {VERSION}")
    n, width = header.n, len(header.names)
    if n < 1:
        raise MalformedError("schema", "a packed record needs at least one sample")
    if len(value) - end != n * (2 + 8 + 8 * width):
        raise MalformedError("schema", f"{len(value) - end} bytes are not {n} samples of {width} names")
    if len(set(header.names)) != width or len(set(header.sources)) != len(header.sources):
        raise MalformedError("schema", "a name or a source stands twice")
    source_of = np.frombuffer(value, "<u2", n, end).astype(np.int64)
    ts_ms = np.frombuffer(value, "<i8", n, end + 2 * n).astype(np.int64)
    values = np.frombuffer(value, "<f8", n * width, end + 10 * n).astype(np.float64).reshape(width, n)
    if int(source_of.max()) >= len(header.sources):
        raise MalformedError("schema", f"a source index is not below {len(header.sources)}")
    bad = (ts_ms < 0) | (ts_ms >= int(MAX_NUMBER))
    if bad.any():
        refuse_instant(int(ts_ms[bad][0]))
    if np.isinf(values).any():
        raise MalformedError("non_finite", "a value is infinite; NaN marks what was not measured")
    return BinarySamples(header, source_of, ts_ms, values)


def _read_header(text: bytes) -> BinaryHeader:
    try:
        header = _decode_header(text)
    except UNREADABLE as error:
        strict_json.read(text)
        raise MalformedError("schema", str(error)) from None
    # The decoder accepts only one fault, a repeated key, which adds a colon.
    labels = header.workload.count(":") + sum(name.count(":") for name in (*header.sources, *header.names))
    if text.count(b":") != len(BinaryHeader.__struct_fields__) + header.kind.count(":") + labels or b"\\" in text:
        strict_json.read(text)
    return header
