"""The bytes of a page: header and columns, cut into chunks that fit a Kafka record, each with the digest of the page.

`seal_page` writes a page. `PageAssembler` reads chunks back into whole pages, and checks their digest and settings.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from streams.catalogue import SOURCES, Indicator, Source, of_source
from streams.config import StreamConfig
from streams.log import UNREADABLE, ContractBroken, LogRecord, OtherSettings
from streams.pages.facts_codec import FactColumns, PageFacts, PageSeries, SeriesColumns
from streams.pages.page import Counters, Page
from streams.records.facts import Control
from streams.records.samples import Bools, Singles

FORMAT: Final = 1
CHUNK_BYTES: Final = 900_000
MAGIC: Final = b"HPG1"
KEY: Final = struct.Struct(">BiqH")  # source, partition, slot, chunk
LENGTH: Final = struct.Struct(">I")
CHUNK_HEAD: Final = struct.Struct(">4sHH16s")  # magic, chunk, chunks, digest of the whole page
_DIGEST_BYTES: Final = 16


class PageHeader(msgspec.Struct, frozen=True):
    """The part of a page that is not arrays. The bytes contain the field names, so other programs can read a page."""

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
    # The parts stay separate here, so that a page of one chunk, the usual case, is copied once.
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


_FOREIGN = "something else writes to the pages topic; stop it, then `harmony state reset`"
_OTHER_SHAPE = "settings changed under existing state; restore the old value or run `harmony state reset`"


class StoredPage(NamedTuple):
    """A page of the log, complete and with a checked digest."""

    page: Page
    digest: str
    first_offset: int
    last_offset: int


_decode_header = msgspec.msgpack.Decoder(PageHeader).decode


def decode_page(body: bytes, config: StreamConfig, num_partitions: int) -> Page:
    """Read the joined chunks of a page whose digest has been checked.

    Raises:
        ContractBroken: the page was written under another format version, step, grace or partition count, or its
            parts do not fit each other.
    """
    try:
        (length,) = LENGTH.unpack_from(body)
        start = LENGTH.size + length
        header = _decode_header(body[LENGTH.size : start])
    except (*UNREADABLE, struct.error) as error:
        raise ContractBroken(f"a page header cannot be read ({error}); {_OTHER_SHAPE}") from None
    for name, value, expected in (
        ("format version", header.v, FORMAT),
        ("step_ms", header.step_ms, config.step_ms),
        ("grace_ms", header.grace_ms, config.grace_ms),
        ("partition count", header.num_partitions, num_partitions),
    ):
        if value != expected:
            raise OtherSettings(f"pages hold {name} {value}, the settings say {expected}; {_OTHER_SHAPE}")
    try:
        return _page_of(header, body, start)
    except (*UNREADABLE, ValueError, IndexError, TypeError) as error:
        raise ContractBroken(f"the parts of a page do not fit each other ({error}); {_FOREIGN}") from None


def _page_of(header: PageHeader, body: bytes, start: int) -> Page:
    k, n = len(header.workloads), len(header.indicators)
    values = np.frombuffer(body, "<f4", k * n, start).reshape(k, n)
    bits = np.frombuffer(body, np.uint8, (k * n + 7) // 8, start + 4 * k * n)
    return Page(
        source=header.source,
        partition=header.partition,
        slot=header.slot,
        prev=header.prev,
        prev_digest=header.prev_digest,
        end_offset=header.end_offset,
        end_stamp_ms=header.end_stamp_ms,
        resume_offset=header.resume_offset,
        step_ms=header.step_ms,
        grace_ms=header.grace_ms,
        indicators=header.indicators,
        workloads=header.workloads,
        values=values.astype(np.float32, copy=False),
        observed=np.unpackbits(bits, count=k * n).astype(bool).reshape(k, n),
        facts=PageFacts(header.facts),
        series=PageSeries(header.series, header.workloads),
        controls=header.controls,
        counters=header.counters,
    )


def align_page(page: Page, indicators: Sequence[str]) -> Page:
    """The page with these indicators as columns, matched by name; an indicator that it does not hold is masked."""
    if tuple(indicators) == page.indicators:
        return page
    values = np.zeros((len(page.workloads), len(indicators)), np.float32)
    observed = np.zeros(values.shape, np.bool_)
    where = {name: column for column, name in enumerate(page.indicators)}
    for column, name in enumerate(indicators):
        if name in where:
            values[:, column] = page.values[:, where[name]]
            observed[:, column] = page.observed[:, where[name]]
    return replace(page, indicators=tuple(indicators), values=values, observed=observed)


def slot_of_page(key: bytes | None) -> int:
    """Slot that the key of a record of the `pages` topic names.

    Raises:
        ValueError: it is no such key.
    """
    if key is None or len(key) != KEY.size:
        raise ValueError("not the key of a page chunk")
    slot: int = KEY.unpack(key)[2]
    return slot


class PageAssembler:
    """Joins chunk records of one `pages` partition, read in log order, into whole pages of both chains.

    Every complete copy of a page is returned, even a repeated one of a second writer; readers take the first of a slot.
    Incomplete pages, whose writer died between chunks, are dropped when a newer page of their chain is complete.

    Args:
        config, num_partitions: what the pages must agree on.
        catalogue: columns of the pages returned, by source; see `align_page`.
        log: full name of the topic and the partition, for error messages.
        sources: the chains to read; others are skipped.
    """

    def __init__(
        self,
        config: StreamConfig,
        num_partitions: int,
        catalogue: Sequence[Indicator],
        log: str = "pages",
        *,
        sources: Collection[Source] = SOURCES,
    ) -> None:
        self._log = log
        self._config = config
        self._num_partitions = num_partitions
        self._sources = frozenset(sources)
        self._columns = {s: tuple(i.name for i in of_source(tuple(catalogue), s)) for s in SOURCES}
        self._partition: int | None = None
        self._open: dict[tuple[Source, int, bytes], _OpenPage] = {}

    def first_pending_offset(self) -> int | None:
        """Offset from which every incomplete page can be read again."""
        return min((page.first_offset for page in self._open.values()), default=None)

    def feed(self, record: LogRecord) -> list[StoredPage]:
        """Take one record; returns the page if the record completes one.

        Raises:
            ContractBroken: no chunk of this partition, a damaged page, or one written under other settings.
        """
        source, slot, chunk, num_chunks, digest, payload = self._read(record)
        if source not in self._sources:
            return []
        identity = (source, slot, digest)
        page = self._open.get(identity)
        if page is None:
            page = self._open[identity] = _OpenPage(num_chunks, record.offset, {})
        if page.num_chunks != num_chunks:
            raise ContractBroken(f"{self._log}: offset {record.offset}: chunk counts of one page differ; {_FOREIGN}")
        page.chunks.setdefault(chunk, payload)
        if len(page.chunks) < num_chunks:
            return []
        del self._open[identity]
        for torn in [other for other in self._open if other[0] == source and other[1] < slot]:
            del self._open[torn]
        body = b"".join(page.chunks[i] for i in range(num_chunks))
        if digest_of(body) != digest:
            raise ContractBroken(
                f"{self._log}: the {source} page of slot {slot} is damaged: offsets {page.first_offset} to "
                f"{record.offset} do not match their digest; run `harmony state reset`"
            )
        try:
            decoded = decode_page(body, self._config, self._num_partitions)
        except ContractBroken as error:
            raise type(error)(f"{self._log}: offset {record.offset}: {error}") from None
        if (decoded.source, decoded.slot, decoded.partition) != (source, slot, self._partition):
            raise ContractBroken(
                f"{self._log}: offset {record.offset}: key and header name different pages; {_FOREIGN}"
            )
        aligned = align_page(decoded, self._columns[source])
        return [StoredPage(aligned, digest.hex(), page.first_offset, record.offset)]

    def _read(self, record: LogRecord) -> tuple[Source, int, int, int, bytes, bytes]:
        key, value = record.key, record.value
        if key is None or value is None or len(key) != KEY.size or len(value) < CHUNK_HEAD.size:
            raise ContractBroken(f"{self._log}: offset {record.offset} is not a page chunk; {_FOREIGN}")
        source, partition, slot, chunk = KEY.unpack(key)
        magic, number, num_chunks, digest = CHUNK_HEAD.unpack_from(value)
        if magic != MAGIC or number != chunk or chunk >= num_chunks or source >= len(SOURCES):
            raise ContractBroken(f"{self._log}: offset {record.offset} is not a page chunk; {_FOREIGN}")
        if self._partition is None:
            self._partition = partition
        if partition != self._partition:
            raise ContractBroken(
                f"{self._log}: offset {record.offset} belongs to partition {partition}, the ones before to "
                f"{self._partition}; {_FOREIGN}"
            )
        return SOURCES[source], slot, chunk, num_chunks, digest, value[CHUNK_HEAD.size :]


@dataclass(slots=True)
class _OpenPage:
    num_chunks: int
    first_offset: int
    chunks: dict[int, bytes]
