"""Commit records of the forecast and decide stages: msgpack with a digest, cut into chunks, chained by digest.

A commit record holds the offset to resume from. It also holds every number that the next output of a stage needs and
that its input log no longer holds.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Any

import msgspec

from streams.log import UNREADABLE, ContractBroken, LogRecord, OtherSettings, OutRecord
from streams.runtime.restore import LogReader

CHUNK_BYTES = 900_000
VERSION = 1
_KEY = re.compile(rb"(ingest|forecast|decide)/[0-9]{1,5}")
FOREIGN_WRITER_REMEDY = "stop whatever else writes to this topic, then `harmony state reset`"
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
    """A commit record assembled from its chunks. `stamp_ms` is the broker stamp of the last chunk."""

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
        """Continue the chain after this commit of an earlier worker."""
        self._sequence, self._digest = commit.sequence, commit.digest

    def append(self, body: bytes) -> list[OutRecord]:
        """The records of the next commit, in order."""
        self._sequence += 1
        self._digest, records = encode_commit(*self._place, self._sequence, self._digest, body)
        return records


class CommitAssembler:
    """Fed with the records of a commits partition in log order; keeps the newest complete commit of one stage.

    The chain decides, not the position in the log: a paused worker that wakes up may write an older commit after newer
    ones, or repeat one. Incomplete commits, whose writer died between chunks, have no effect.

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
                raise ContractBroken(f"{where} is not a commit record; {FOREIGN_WRITER_REMEDY}")
            return
        try:
            chunk = msgspec.msgpack.decode(record.value or b"", type=_Chunk)
        except UNREADABLE as error:
            raise ContractBroken(f"{where} is not a commit record ({error}); {FOREIGN_WRITER_REMEDY}") from error
        if chunk.version != VERSION:
            raise OtherSettings(f"{where} {version_mismatch(chunk.version)}")
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


def version_mismatch(version: int) -> str:
    """Clause of an error message on a record of another format version."""
    return (
        f"has version {version}, this release writes {VERSION}; run the release that wrote it, or `harmony state reset`"
    )


def encode_body(value: Any) -> bytes:
    """Msgpack bytes of plain data and structs; equal values give equal bytes."""
    return msgspec.msgpack.encode(value, order="deterministic")


async def newest_commit(reader: LogReader, topic: str, stage: str, partition: int) -> Commit | None:
    """The newest complete commit record of a stage in its commits partition, looking back in growing stretches."""
    begin, end = await reader.bounds(topic, partition)
    stretch = 8  # records; those of a large fleet have megabytes each
    while True:
        start = max(begin, end - stretch)
        assembler = CommitAssembler(stage, partition, topic)
        try:
            async for record in reader.read(topic, partition, start, end):
                assembler.feed(record)
        except ContractBroken:
            # A stretch that begins with a repeated commit of a paused worker looks torn, though the whole log is not.
            if start == begin:
                raise
        else:
            if assembler.newest is not None or start == begin:
                return assembler.newest
        stretch *= 4
