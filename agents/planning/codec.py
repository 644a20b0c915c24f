"""The bytes of a `plans` record: a magic, then deflated MessagePack of one PlanRecord. Same record, same bytes.

The plans of a large partition take many times the room of their bytes. So they are written some at a time and read one
at a time, and few of them are held at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agents.records import PlanOf, PlanRecord, WorkloadPlan
from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.records.facts import FleetFacts
from streams.topics import MIB

MAGIC = b"HPL1"
_LEVEL = 1  # of deflation
# Partition of records that bring nothing but control records, from their own topic; their slot is an offset of it.
CONTROLS_PARTITION = -1
# Deflated bytes from which on the other plans of a record are written without content, and how many that may be: a
# record is no larger than `streams.topics.PLAN_BYTES` whatever a plan holds.
FULL_BYTES = 24 * MIB

_FIELDS = PlanOf.__struct_fields__
_WORKLOADS = "workloads"
_AT = _FIELDS.index(_WORKLOADS)


class _Glance(msgspec.Struct, frozen=True):
    slot: int
    v: int = 1


class Shown(msgspec.Struct, frozen=True):
    """What a plan says of its workload's fleet."""

    workload: str
    fleet: FleetFacts | None = None


class Missed(msgspec.Struct, frozen=True, gc=False):
    """What a plan says of its workload's newest slot: the share of requests outside the SLO."""

    workload: str
    slo_miss_ratio: float | None = None


_NO_PLAN = (*UNREADABLE, ValueError, zlib.error)
_encode = msgspec.msgpack.encode
_DECODER = msgspec.msgpack.Decoder(PlanRecord)
_PACKED = msgspec.msgpack.Decoder(PlanOf[msgspec.Raw])
_GLANCES = msgspec.msgpack.Decoder(_Glance)
_MISSED = msgspec.msgpack.Decoder(PlanOf[Missed])
_SHOWN = msgspec.msgpack.Decoder(Shown)
_PLANS = msgspec.msgpack.Decoder(WorkloadPlan)
_Plan = TypeVar("_Plan", PlanRecord, PlanOf[msgspec.Raw], PlanOf[Missed], _Glance)
_Part = TypeVar("_Part", Shown, WorkloadPlan)


def plan_key(partition: int) -> bytes:
    """Key of the plans of a pages partition, all of which stand in one partition."""
    return b"%d" % partition


class PlanWriter:
    """Writes one record, some of its plans at a time.

    Args:
        head: the record without plans.
        number: how many plans there will be.
    """

    def __init__(self, head: PlanOf[Any], number: int) -> None:
        self._head, self._left = head, number
        self._deflater = zlib.compressobj(_LEVEL)
        self._parts = [MAGIC]
        self._num_bytes = 0
        opening = bytes([0x80 | len(_FIELDS)]) + _pairs(head, _FIELDS[:_AT]) + _encode(_WORKLOADS)
        self._write(opening + _array_head(number))

    def add(self, plans: Sequence[WorkloadPlan]) -> None:
        """The next plans of the record."""
        self._left -= len(plans)
        self._write(_encode(plans)[len(_array_head(len(plans))) :])

    def close(self) -> bytes:
        """The record.

        Raises:
            ValueError: there were more plans, or fewer, than was said.
        """
        if self._left:
            raise ValueError(f"a record of plans lacks {self._left} of those it was to have")
        self._write(_pairs(self._head, _FIELDS[_AT + 1 :]))
        return b"".join((*self._parts, self._deflater.flush()))

    @property
    def is_full(self) -> bool:
        """Whether further plans must go without content."""
        return self._num_bytes >= FULL_BYTES

    def _write(self, data: bytes) -> None:
        part = self._deflater.compress(data)
        self._parts.append(part)
        self._num_bytes += len(part)


def encode_plan(plan: PlanRecord) -> bytes:
    writer = PlanWriter(plan, len(plan.workloads))
    writer.add(plan.workloads)
    return writer.close()


def _pairs(record: PlanOf[Any], names: Sequence[str]) -> bytes:
    return b"".join(_encode(name) + _encode(getattr(record, name)) for name in names)


def _array_head(number: int) -> bytes:
    """MessagePack's, of an array of so many."""
    if number < 16:
        return bytes([0x90 | number])
    return b"\xdc" + number.to_bytes(2, "big") if number < 1 << 16 else b"\xdd" + number.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class PackedPlans:
    """A record whose plans are read one at a time.

    Attributes:
        record: with the plans as bytes.
        offset: where it was read.
    """

    record: PlanOf[msgspec.Raw]
    offset: int = -1

    def shown(self) -> list[Shown]:
        """Of every plan, in their order.

        Raises:
            ContractBroken: as `decode_plan`.
        """
        return [self._read(_SHOWN, raw) for raw in self.record.workloads]

    def plan(self, number: int) -> WorkloadPlan:
        """One of them, counted from none.

        Raises:
            ContractBroken: as `decode_plan`.
        """
        return self._read(_PLANS, self.record.workloads[number])

    def _read(self, decoder: msgspec.msgpack.Decoder[_Part], raw: msgspec.Raw) -> _Part:
        try:
            return decoder.decode(raw)
        except _NO_PLAN as error:
            raise _no_plan(self.offset, error) from error


def decode_plan(value: bytes | None, offset: int = -1) -> PlanRecord:
    """Read one record of the `plans` log.

    Raises:
        ContractBroken: the bytes were not written by `encode_plan`; names the offset and the remedy.
        OtherSettings: another version wrote them; likewise.
    """
    return _decoded(_DECODER, value, offset)


def open_plans(value: bytes | None, offset: int = -1) -> PackedPlans:
    """Read one record of the `plans` log, all but its plans.

    Raises:
        ContractBroken: as `decode_plan`.
    """
    return PackedPlans(_decoded(_PACKED, value, offset), offset)


def misses_of_plan(value: bytes | None, offset: int = -1) -> PlanOf[Missed]:
    """Read one record of the `plans` log, of its plans nothing but what was missed: in half the time.

    Raises:
        ContractBroken: as `decode_plan`.
    """
    return _decoded(_MISSED, value, offset)


def slot_of_plan(value: bytes | None, offset: int = -1) -> int:
    """Slot of one record of the `plans` log, read in a fraction of the time of all that it says.

    Raises:
        ContractBroken: as `decode_plan`.
    """
    return _decoded(_GLANCES, value, offset).slot


def _decoded(decoder: msgspec.msgpack.Decoder[_Plan], value: bytes | None, offset: int) -> _Plan:
    try:
        if value is None or value[:4] != MAGIC:
            raise ValueError("it does not start with the plan magic")
        plan = decoder.decode(zlib.decompress(value[4:]))
    except _NO_PLAN as error:
        raise _no_plan(offset, error) from error
    if plan.v != 1:
        raise OtherSettings(
            f"plans/0: offset {offset} has version {plan.v}, this release reads 1: run the release that wrote it, or "
            "`harmony state reset`"
        )
    return plan


def _no_plan(offset: int, error: Exception) -> ContractBroken:
    return ContractBroken(
        f"plans/0: offset {offset} is not a plan of this release ({error}): stop whoever else writes to the topic, "
        "then run `harmony state reset`"
    )
