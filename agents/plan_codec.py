"""The bytes of a `plans` record: a magic, then deflated MessagePack of one PlanRecord. Same record, same bytes."""

from __future__ import annotations

import zlib
from typing import TypeVar

import msgspec

from agents.records import PlanRecord
from streams.log import ContractBroken, OtherSettings

MAGIC = b"HPL1"


class _Glance(msgspec.Struct, frozen=True):
    slot: int
    v: int = 1


_DECODER = msgspec.msgpack.Decoder(PlanRecord)
_GLANCES = msgspec.msgpack.Decoder(_Glance)
_Plan = TypeVar("_Plan", PlanRecord, _Glance)


def plan_key(partition: int) -> bytes:
    """Key of the plans of a pages partition, all of which stand in one partition."""
    return b"%d" % partition


def encode_plan(plan: PlanRecord) -> bytes:
    return MAGIC + zlib.compress(msgspec.msgpack.encode(plan), 1)


def decode_plan(value: bytes | None, offset: int = -1) -> PlanRecord:
    """Read one record of the `plans` log.

    Raises:
        ContractBroken: the bytes were not written by `encode_plan`; names the offset and the remedy.
        OtherSettings: another version wrote them; likewise.
    """
    return _decoded(_DECODER, value, offset)


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
    except (ValueError, zlib.error) as error:  # msgspec's errors are ValueErrors
        raise ContractBroken(
            f"plans/0: offset {offset} is not a plan of this release ({error}): stop whoever else writes to the "
            "topic, then run `harmony state reset`"
        ) from error
    if plan.v != 1:
        raise OtherSettings(
            f"plans/0: offset {offset} has version {plan.v}, this release reads 1: run the release that wrote it, or "
            "`harmony state reset`"
        )
    return plan
