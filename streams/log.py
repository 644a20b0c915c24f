"""Kafka as the pure core sees it: records in, records out, how a stage commits, and errors that end the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as read from a partition. `stamp_ms` is the broker's own stamp (LogAppendTime)."""

    offset: int
    stamp_ms: int
    key: bytes | None
    value: bytes | None


class OutRecord(NamedTuple):
    """One record to publish. `partition` None means: by the murmur2 hash of the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Emission(NamedTuple):
    """The records that a stage publishes for one unit of input, in this order, each group awaited before the next.

    Attributes:
        outputs: groups of records.
        commits: commit records; once they are acknowledged, a restart may resume from `resume_offset`.
        closed_stamp_ms: the broker's stamp of the record that closed the slot; None when no slot was closed.
        urgent: publish before the kernel is asked for more.
    """

    outputs: Sequence[Sequence[OutRecord]]
    commits: Sequence[OutRecord]
    resume_offset: int
    closed_stamp_ms: int | None = None
    urgent: bool = False


class ContractBroken(Exception):
    """The log or the state breaks a rule: the process ends, and the message names the remedy."""

    exit_code = 1


class OtherSettings(ContractBroken):
    """The state was built under other settings: a person must choose, so a restart does not help."""

    exit_code = 2


T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items each, the last one perhaps shorter; this bounds the memory that a large fleet takes.

    >>> list(batched("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


# Errors of decoding bytes that another program wrote or a disk damaged. For strings that are not UTF-8, and for nesting
# of thousands of levels, msgspec raises Python's own errors.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
