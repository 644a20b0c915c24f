"""The last step of writing a page: header and columns to bytes, in chunks that fit a Kafka record, digest in each."""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

import msgspec
import numpy as np

from streams.catalogue import SOURCES, Source
from streams.pages.facts_codec import FactColumns, SeriesColumns
from streams.pages.page import Control, Counters
from streams.records.samples import Bools, Singles

FORMAT: Final = 1
CHUNK_BYTES: Final = 900_000
MAGIC: Final = b"HPG1"
KEY: Final = struct.Struct(">BiqH")  # source, partition, slot, chunk
LENGTH: Final = struct.Struct(">I")
CHUNK_HEAD: Final = struct.Struct(">4sHH16s")  # magic, chunk, chunks, digest of the whole page
_DIGEST_BYTES: Final = 16


class PageHeader(msgspec.Struct, frozen=True):
    """The part of a page that is not arrays. Names are kept in the bytes: a page can be read without this code."""

    v: int
    source: Source
    partition: int
    num_partitions: int
    slot: int
    prev: int | None
    prev_digest: str | None
    end_offset: int
    end_stamp_ms: int
    resume_offset: int
    step_ms: int
    grace_ms: int
    indicators: tuple[str, ...]
    workloads: tuple[str, ...]
    facts: FactColumns
    series: SeriesColumns
    controls: tuple[Control, ...]
    counters: Counters


class EncodedPage(NamedTuple):
    """A page as (key, value) records in order, and its digest (hex)."""

    records: list[tuple[bytes, bytes]]
    digest: str


_encode_header = msgspec.msgpack.Encoder().encode


def page_key(source: Source, partition: int, slot: int, chunk: int) -> bytes:
    """Key of one chunk; unique per slot, since the log is bounded by size and never compacted."""
    return KEY.pack(SOURCES.index(source), partition, slot, chunk)


def digest_of(*parts: bytes) -> bytes:
    """Digest of a page, or of its parts one after the other."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def seal_page(header: PageHeader, values: Singles, observed: Bools, chunk_bytes: int = CHUNK_BYTES) -> EncodedPage:
    """The chunk records of a page; values and mask [k, N] as its header names workloads and indicators."""
    head = _encode_header(header)
    # Not yet one piece: most pages are one chunk, and copied once.
    parts = (
        LENGTH.pack(len(head)),
        head,
        np.ascontiguousarray(values, "<f4").tobytes(),
        np.packbits(observed).tobytes(),
    )
    digest = digest_of(*parts)
    length = sum(map(len, parts))
    num_chunks = -(-length // chunk_bytes)
    if num_chunks == 1:
        chunks = [b"".join((CHUNK_HEAD.pack(MAGIC, 0, 1, digest), *parts))]
    else:
        body = b"".join(parts)
        chunks = [
            CHUNK_HEAD.pack(MAGIC, number, num_chunks, digest) + body[number * chunk_bytes : (number + 1) * chunk_bytes]
            for number in range(num_chunks)
        ]
    keyed = [(page_key(header.source, header.partition, header.slot, n), chunk) for n, chunk in enumerate(chunks)]
    return EncodedPage(keyed, digest.hex())
