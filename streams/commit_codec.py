"""Commit records and coarse rows on the wire: msgpack with a digest; large ones are cut into chunks.

A commit record holds every number that the next output of a stage reads and that its input log does not still hold,
plus the offset to resume from. It is chained to its predecessor by digest.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import msgspec
import numpy as np

from streams.log import ContractBroken, LogRecord, OutRecord
from streams.window_table import CoarseRow

CHUNK_BYTES = 900_000
VERSION = 1


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


class CommitAssembler:
    """Fed with the records of a commits partition; keeps the newest complete commit of one stage."""

    def __init__(self, stage: str, partition: int) -> None:
        self._key = commit_key(stage, partition)
        self._where = f"commits/{partition} ({stage})"
        self._parts: list[_Chunk] = []
        self.newest: Commit | None = None

    def feed(self, record: LogRecord) -> None:
        """Take one record; records of other stages are skipped.

        Raises:
            ContractBroken: the record is not ours, or its bytes do not match their digest.
        """
        if record.key != self._key:
            return
        try:
            chunk = msgspec.msgpack.decode(record.value or b"", type=_Chunk)
        except msgspec.MsgspecError as error:
            raise ContractBroken(f"{self._where}: offset {record.offset} is not a commit record ({error})") from error
        if chunk.version != VERSION:
            raise ContractBroken(
                f"{self._where}: offset {record.offset} has version {chunk.version}, this release writes {VERSION}; "
                "run the release that wrote it, or `harmony state reset`"
            )
        if chunk.index == 0:
            self._parts = []
        self._parts.append(chunk)
        if [c.index for c in self._parts] != list(range(len(self._parts))) or self._parts[0].digest != chunk.digest:
            self._parts = []  # torn by a crash between chunks: the commit before it is still in force
            return
        if len(self._parts) < chunk.count:
            return
        try:
            body = zlib.decompress(b"".join(c.body for c in self._parts))
        except zlib.error as error:
            raise ContractBroken(f"{self._where}: the commit ending at offset {record.offset} is corrupt") from error
        if hashlib.blake2b(body, digest_size=12).hexdigest() != chunk.digest:
            raise ContractBroken(
                f"{self._where}: the commit ending at offset {record.offset} does not match its digest; "
                "restore the topic, or accept a new start with `harmony state reset`"
            )
        self._parts = []
        self.newest = Commit(
            chunk.stage, chunk.partition, chunk.sequence, chunk.digest, chunk.previous, body, record.stamp_ms
        )


class _CoarseWire(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    workloads: tuple[str, ...]
    columns: int
    values: bytes
    observed: bytes


def encode_coarse(row: CoarseRow) -> list[bytes]:
    """Bytes of ten minutes of means, in parts of at most 5,000 workloads."""
    parts: list[bytes] = []
    for start in range(0, max(1, len(row.workloads)), 5_000):
        stop = start + 5_000
        parts.append(
            msgspec.msgpack.encode(
                _CoarseWire(
                    VERSION,
                    row.index,
                    row.workloads[start:stop],
                    row.values.shape[1],
                    row.values[start:stop].tobytes(),
                    row.observed[start:stop].tobytes(),
                )
            )
        )
    return parts


def decode_coarse(value: bytes) -> CoarseRow:
    """Inverse of one part of `encode_coarse`.

    Raises:
        ContractBroken: the bytes are not a coarse row.
    """
    try:
        wire = msgspec.msgpack.decode(value, type=_CoarseWire)
        shape = (len(wire.workloads), wire.columns)
        values = np.frombuffer(wire.values, np.float32).reshape(shape)
        observed = np.frombuffer(wire.observed, np.bool_).reshape(shape)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ContractBroken(f"pages.coarse holds a record that is not ten minutes of means ({error})") from error
    return CoarseRow(wire.index, wire.workloads, values, observed)


def pack(value: Any) -> bytes:
    """Msgpack of plain data and structs; equal values give equal bytes."""
    return msgspec.msgpack.encode(value, order="deterministic")
