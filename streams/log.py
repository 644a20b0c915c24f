"""What a Kafka log looks like to the pure core: records in, records out, and how a stage commits."""

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
    """What a stage publishes for one unit of input, in this order, each group awaited before the next.

    `outputs` may hold several groups. `commits` are the commit records: once they are acknowledged the stage may resume
    from `resume_offset` after a crash and loses nothing. `closed_stamp_ms` is the broker's stamp of the record that
    closed the slot answered here; None: nothing was closed. One that is `urgent` leaves before the kernel is asked for
    more: somebody waits for it.
    """

    outputs: Sequence[Sequence[OutRecord]]
    commits: Sequence[OutRecord]
    resume_offset: int
    closed_stamp_ms: int | None = None
    urgent: bool = False


class ContractBroken(Exception):
    """The log, or our state, is not what the rules say it must be: the process ends and names the remedy."""

    exit_code = 1


class OtherSettings(ContractBroken):
    """The state was built under other settings than these: a person must choose, so starting again is no use."""

    exit_code = 2


# So many at a time: what bounds the memory of a large fleet.


T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """So many of them at a time, the last time perhaps fewer."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


# What msgspec raises of bytes that are not what they should be.
#
# Strings that are not UTF-8, and what is nested thousands of times, are told by errors that are none of its own:
# whoever reads what others wrote, or what a broken disk gives back, catches all three.


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
