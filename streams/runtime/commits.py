"""Commit records and coarse rows on the wire: msgpack with a digest; large ones are cut into chunks.

A commit record holds every number that the next output of a stage reads and that its input log does not still hold,
plus the offset to resume from. It is chained to its predecessor by digest.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from streams.log import ContractBroken, LogRecord, OtherSettings, OutRecord
from streams.unreadable import UNREADABLE
from streams.windows.coarse import CoarseRow

CHUNK_BYTES = 900_000
_PART_WORKLOADS = 5_000  # of a coarse row
VERSION = 1
_KEY = re.compile(rb"(ingest|forecast|decide)/[0-9]{1,5}")
_FOREIGN = "stop whatever else writes to this topic, then `harmony state reset`"
_REMEDY = "restore the topic, or accept a new start with `harmony state reset`"


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    version: int
    stage: str
    partition: int
    sequence: int
    index: int
    count: int
    digest: str
    previous: str | None
    body: bytes


class Commit(msgspec.Struct, frozen=True):
    """A commit record put together again. `stamp_ms` is the broker stamp of its last chunk."""

    stage: str
    partition: int
    sequence: int
    digest: str
    previous: str | None
    body: bytes
    stamp_ms: int


def commit_key(stage: str, partition: int) -> bytes:
    """Record key of all commits of one stage and partition."""
    return f"{stage}/{partition}".encode()


def encode_commit(
    topic: str, stage: str, partition: int, sequence: int, previous: str | None, body: bytes
) -> tuple[str, list[OutRecord]]:
    """Cut a body into records of at most 900 kB; returns its digest and the records, in order."""
    digest = hashlib.blake2b(body, digest_size=12).hexdigest()
    packed = zlib.compress(body, 1)
    parts = [packed[i : i + CHUNK_BYTES] for i in range(0, len(packed), CHUNK_BYTES)] or [b""]
    key = commit_key(stage, partition)
    return digest, [
        OutRecord(
            topic,
            key,
            msgspec.msgpack.encode(_Chunk(VERSION, stage, partition, sequence, i, len(parts), digest, previous, part)),
            partition,
        )
        for i, part in enumerate(parts)
    ]


class CommitChain:
    """The commits that a stage writes for one partition: each names the one before it.

    Args:
        topic: full name of the commits topic.
    """

    def __init__(self, topic: str, stage: str, partition: int) -> None:
        self._place = (topic, stage, partition)
        self._sequence = 0
        self._digest: str | None = None

    def follow(self, commit: Commit) -> None:
        """Go on after this one, which an earlier life wrote."""
        self._sequence, self._digest = commit.sequence, commit.digest

    def append(self, body: bytes) -> list[OutRecord]:
        """The records of the next commit, in order."""
        self._sequence += 1
        self._digest, records = encode_commit(*self._place, self._sequence, self._digest, body)
        return records


class CommitAssembler:
    """Fed with the records of a commits partition in log order; keeps the newest complete commit of one stage.

    The chain decides, not the place in the log: a paused worker that wakes up may write an older commit after newer
    ones, or the same one again. Chunks that never became whole (their writer died between them) stay without effect.

    Args:
        topic: full name of the topic, for what errors say.
    """

    def __init__(self, stage: str, partition: int, topic: str = "commits") -> None:
        self._key = commit_key(stage, partition)
        self._log = f"{topic}/{partition}"
        self._stage = stage
        self._open: dict[tuple[int, str], dict[int, _Chunk]] = {}
        self._digests: set[str] = set()
        self.newest: Commit | None = None

    def feed(self, record: LogRecord) -> None:
        """Take one record; those of the other stage are skipped.

        Raises:
            ContractBroken: the record is no commit of HARMONY, its bytes do not match their digest, or the commit
                does not follow on the one before.
        """
        where = f"{self._log}: offset {record.offset}"
        if record.key != self._key:
            if record.key is None or _KEY.fullmatch(record.key) is None:
                raise ContractBroken(f"{where} is not a commit record; {_FOREIGN}")
            return
        try:
            chunk = msgspec.msgpack.decode(record.value or b"", type=_Chunk)
        except UNREADABLE as error:
            raise ContractBroken(f"{where} is not a commit record ({error}); {_FOREIGN}") from error
        if chunk.version != VERSION:
            raise OtherSettings(f"{where} {_other_version(chunk.version)}")
        identity = (chunk.sequence, chunk.digest)
        chunks = self._open.setdefault(identity, {})
        chunks[chunk.index] = chunk
        if len(chunks) < chunk.count:
            return
        del self._open[identity]
        self._link(_commit_of(chunks, record, where), where)

    def _link(self, commit: Commit, where: str) -> None:
        newest = self.newest
        if newest is not None:
            if commit.sequence <= newest.sequence:
                if commit.sequence == newest.sequence:
                    self._digests.add(commit.digest)
                return
            if commit.sequence != newest.sequence + 1 or commit.previous not in self._digests:
                raise ContractBroken(
                    f"{where} ends commit {commit.sequence} of the {self._stage} stage, which does not follow on "
                    f"commit {newest.sequence} before it: the chain is torn; {_REMEDY}"
                )
        for identity in [i for i in self._open if i[0] <= commit.sequence]:
            del self._open[identity]
        self.newest = commit
        self._digests = {commit.digest}


def _commit_of(chunks: dict[int, _Chunk], record: LogRecord, where: str) -> Commit:
    last = chunks[max(chunks)]
    try:
        body = zlib.decompress(b"".join(chunks[i].body for i in range(last.count)))
    except (zlib.error, KeyError) as error:
        raise ContractBroken(f"{where} ends a commit record that is corrupt; {_REMEDY}") from error
    if hashlib.blake2b(body, digest_size=12).hexdigest() != last.digest:
        raise ContractBroken(f"{where} ends a commit record that does not match its digest; {_REMEDY}")
    return Commit(last.stage, last.partition, last.sequence, last.digest, last.previous, body, record.stamp_ms)


def _other_version(found: int) -> str:
    return (
        f"has version {found}, this release writes {VERSION}; run the release that wrote it, or `harmony state reset`"
    )


class _CoarseWire(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    workloads: tuple[str, ...]
    indicators: tuple[str, ...]
    values: bytes
    observed: bytes


def encode_coarse(row: CoarseRow) -> list[bytes]:
    """Bytes of ten minutes of means, in parts of at most 900 kB of names and cells, and of 5,000 workloads."""
    parts: list[bytes] = []
    for start, stop in pairwise(_coarse_cuts(row)):
        parts.append(
            msgspec.msgpack.encode(
                _CoarseWire(
                    VERSION,
                    row.index,
                    row.workloads[start:stop],
                    row.indicators,
                    row.values[start:stop].tobytes(),
                    row.observed[start:stop].tobytes(),
                )
            )
        )
    return parts


def _coarse_cuts(row: CoarseRow) -> list[int]:
    """Where the parts of a row begin, and where the last one ends: [parts + 1], ascending."""
    cells_bytes = len(row.indicators) * (row.values.itemsize + row.observed.itemsize)
    cuts, num_bytes = [0], 0
    for at, workload in enumerate(row.workloads):
        more = len(workload.encode()) + cells_bytes
        if num_bytes + more > CHUNK_BYTES or at - cuts[-1] == _PART_WORKLOADS:
            cuts.append(at)
            num_bytes = 0
        num_bytes += more
    return [*cuts, len(row.workloads)]


def decode_coarse(value: bytes | None, where: str = "pages.coarse") -> CoarseRow:
    """Inverse of one part of `encode_coarse`.

    Args:
        where: topic, partition and offset, for what errors say.

    Raises:
        ContractBroken: the bytes are not a coarse row, or one of another version.
    """
    try:
        wire = msgspec.msgpack.decode(value or b"", type=_CoarseWire)
        if wire.version != VERSION:
            raise OtherSettings(f"{where} {_other_version(wire.version)}")
        shape = (len(wire.workloads), len(wire.indicators))
        values = np.frombuffer(wire.values, np.float32).reshape(shape)
        observed = np.frombuffer(wire.observed, np.bool_).reshape(shape)
    except (*UNREADABLE, ValueError) as error:
        raise ContractBroken(f"{where} is not ten minutes of means ({error}); {_FOREIGN}") from error
    return CoarseRow(wire.index, wire.workloads, wire.indicators, values, observed)


def pack(value: Any) -> bytes:
    """Msgpack of plain data and structs; equal values give equal bytes."""
    return msgspec.msgpack.encode(value, order="deterministic")
