"""The bytes of a `plans` record: written some plans at a time, read whole, or one plan at a time."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.planning.codec import (
    MAGIC,
    Missed,
    PlanWriter,
    Shown,
    decode_plan,
    encode_plan,
    misses_of_plan,
    open_plans,
    slot_of_plan,
)
from agents.records import PlanOf, WorkloadPlan
from streams.log import ContractBroken
from tests.agents.decide.decide_runs import control
from tests.agents.planning.plan_samples import plan, record

HEAD = record(3, controls=(control("pin", replicas=3),))


def plans_of(number: int) -> tuple[WorkloadPlan, ...]:
    return tuple(plan(f"w{k}", current=None if k % 3 == 0 else k, proposed=k) for k in range(number))


@given(st.lists(st.integers(0, 20), max_size=5))
def test_a_record_written_in_parts_is_the_record_in_one(sizes: list[int]) -> None:
    plans = plans_of(sum(sizes))
    whole = msgspec.structs.replace(HEAD, workloads=plans)
    writer, first = PlanWriter(HEAD, len(plans)), 0
    for size in sizes:
        writer.add(plans[first : first + size])
        first += size
    value = writer.close()
    assert value[: len(MAGIC)] == MAGIC
    assert zlib.decompress(value[len(MAGIC) :]) == msgspec.msgpack.encode(whole)
    assert decode_plan(value) == whole
    assert decode_plan(encode_plan(whole)) == whole


@pytest.mark.parametrize("number", [0, 1, 15, 16, 70_000])
def test_every_size_has_its_head_and_plans_are_read_one_at_a_time(number: int) -> None:
    plans = plans_of(min(number, 16)) + (plan("z"),) * max(number - 16, 0)
    whole = msgspec.structs.replace(HEAD, workloads=plans)
    packed = open_plans(encode_plan(whole), 5)
    assert msgspec.structs.replace(packed.record, workloads=()) == HEAD
    shown = packed.shown()
    assert len(shown) == number
    for k in {*range(min(number, 20)), *([number - 1] if number else [])}:
        assert packed.plan(k) == plans[k]
        assert shown[k] == Shown(packed.plan(k).workload, packed.plan(k).fleet)


@given(st.lists(st.none() | st.floats(0, 1), max_size=5))
def test_what_was_missed_is_read_without_the_rest(misses: list[float | None]) -> None:
    plans = tuple(msgspec.structs.replace(plan(f"w{k}"), slo_miss_ratio=miss) for k, miss in enumerate(misses))
    whole = msgspec.structs.replace(HEAD, workloads=plans)
    told = tuple(Missed(f"w{k}", miss) for k, miss in enumerate(misses))
    assert misses_of_plan(encode_plan(whole)) == msgspec.structs.replace(HEAD, workloads=told)


@pytest.mark.parametrize("added", [0, 2])
def test_another_number_of_plans_than_was_said_is_no_record(added: int) -> None:
    writer = PlanWriter(HEAD, 1)
    writer.add(plans_of(added))
    with pytest.raises(ValueError, match="plans"):
        writer.close()


def test_a_plan_that_is_none_is_refused_where_it_is_read() -> None:
    class Bad(msgspec.Struct):
        workload: str = "a"
        refused: int = 1

    fields = {name: getattr(HEAD, name) for name in PlanOf.__struct_fields__}
    value = MAGIC + zlib.compress(msgspec.msgpack.encode({**fields, "workloads": (Bad(),)}))
    packed = open_plans(value, 7)
    assert packed.shown() == [Shown("a")]
    with pytest.raises(ContractBroken, match=r"offset 7 is not a plan.*state reset"):
        packed.plan(0)
    for bad in (value[:-3], MAGIC, None):
        with pytest.raises(ContractBroken, match=r"offset 7 is not a plan.*state reset"):
            open_plans(bad, 7)


def test_what_is_nested_too_deep_is_no_plan() -> None:
    deep = b"\x91" * 200_000 + b"\xc0"
    value = MAGIC + zlib.compress(b"\x81" + msgspec.msgpack.encode("workloads") + deep)
    for read in (decode_plan, open_plans, slot_of_plan, misses_of_plan):
        with pytest.raises(ContractBroken, match=r"offset 7 is not a plan.*state reset"):
            read(value, 7)
