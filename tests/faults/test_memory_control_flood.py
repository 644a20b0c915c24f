"""A flood of valid control records: no record of any log grows with it, and everything beyond the bounds is counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest

from agents.decide import controls as control_stage
from agents.decide.controls import MAX_CONTROLS_PER_MINUTE, ControlKernel
from agents.decide.kernel import DecideKernel
from agents.decide.state import MAX_UNDECLARED_OVERRIDES
from agents.forecast.kernel import _MAX_LATE_CONTROLS
from agents.planning.codec import decode_plan
from streams.ingest import kernel as ingest
from streams.ingest.kernel import MAX_CONTROLS_PER_PAGE
from streams.log import LogRecord, OutRecord
from streams.meter import NullMeter
from streams.records.facts import Control
from streams.records.schema import encode_control
from tests.agents.planning.plan_samples import STEP_MS, STREAM, TOPICS, log, plan, policy, record
from tests.infra.observability.memory_loop import MemoryLoop
from tests.streams.ingest.ingest_log import CONFIG, T0, Log

FLOOD = 6_000
MOST_BYTES = 1 << 20  # of any record: what a broker takes by default
Bound = Callable[[], AbstractContextManager[object]]


def pins(number: int) -> list[Control]:
    """Each about another workload, with a reason that cannot be compressed."""
    rng = random.Random(1)
    return [
        Control(f"pin-{n}", T0, "pin", f"team/{rng.randbytes(20).hex()}", replicas=3, reason=rng.randbytes(120).hex())
        for n in range(number)
    ]


def without(module: object, **limits: int) -> Bound:
    return lambda: patch.multiple(module, **limits)  # type: ignore[arg-type]


def largest(outs: Sequence[OutRecord]) -> int:
    return max(len(out.value or b"") for out in outs)


def copied(values: Sequence[bytes]) -> list[OutRecord]:
    """What the control stage makes of these records, all stamped within a minute."""
    kernel = ControlKernel(TOPICS, STEP_MS, NullMeter())
    records = [LogRecord(n, T0, None, value) for n, value in enumerate(values)]

    async def fold() -> list[OutRecord]:
        return [out async for emission in kernel.fold(records) for group in emission.outputs for out in group]

    return asyncio.run(fold())


def decided(plans: Sequence[bytes]) -> tuple[DecideKernel, list[OutRecord]]:
    """The kernel that has folded these records of `plans` and an ordinary one, and what it wrote."""
    kernel = DecideKernel(policy(), STREAM, TOPICS)
    records = [LogRecord(n, T0, None, value) for n, value in enumerate(plans)]
    ordinary = log(record(0, plan()))[0]
    emissions = [kernel.fold(r) for r in records]
    emissions.append(kernel.fold(LogRecord(len(plans), T0, None, ordinary.value)))
    return kernel, [out for e in emissions for group in (*e.outputs, e.commits) for out in group]


NO_LIMITS: dict[str, Bound] = {
    "bounded": nullcontext,
    # The control arm: the same flood with the bounds off.
    "unbounded": without(control_stage, MAX_CONTROLS_PER_MINUTE=10**9, _CONTROLS_PER_RECORD=10**9),
}


@pytest.mark.parametrize("arm", NO_LIMITS)
def test_thousands_of_pins_in_a_minute(arm: str) -> None:
    values = [encode_control(control) for control in pins(FLOOD)]
    with NO_LIMITS[arm]():
        outs = copied(values)
    plans = [out for out in outs if out.topic == TOPICS.plans]
    if arm == "unbounded":
        assert largest(plans) > MOST_BYTES
        return
    assert sum(len(decode_plan(out.value).controls) for out in plans) == MAX_CONTROLS_PER_MINUTE
    assert largest(outs) < MOST_BYTES
    kernel, written = decided([out.value or b"" for out in plans])
    assert largest(written) < MOST_BYTES
    assert len(kernel.state.operator) <= MAX_UNDECLARED_OVERRIDES
    assert not kernel.state.control_ids


@pytest.mark.parametrize("arm", ["bounded", "unbounded"])
def test_thousands_of_pins_in_telemetry_that_may_hold_them(arm: str) -> None:
    unbounded = without(ingest, MAX_CONTROLS_PER_PAGE=10**9)
    with unbounded() if arm == "unbounded" else nullcontext():
        telemetry = Log(replace(CONFIG, controls_in_telemetry=True))
        telemetry.tick(500)
        for control in pins(FLOOD):
            telemetry.put(encode_control(control), 600, None)
        telemetry.tick(2_500)
    (page, *_) = telemetry.pages
    assert len(page.controls) == (FLOOD if arm == "unbounded" else MAX_CONTROLS_PER_PAGE)
    told = record(0, plan(), controls=page.controls)
    size = len(log(told)[0].value or b"")
    assert (size > MOST_BYTES) == (arm == "unbounded")
    if arm == "bounded":
        assert page.counters.refused == FLOOD - MAX_CONTROLS_PER_PAGE


def test_telemetry_orders_nothing_unless_it_is_allowed_to() -> None:
    telemetry = Log()
    telemetry.tick(500)
    for control in pins(FLOOD):
        telemetry.put(encode_control(control), 600, None)
    telemetry.tick(2_500)
    assert not any(page.controls for page in telemetry.pages)
    assert sum(telemetry.kernel.dead_letter_counts.values()) == FLOOD
    letters = [out for e in telemetry.emissions for group in e.outputs for out in group]
    assert 0 < len(letters) < FLOOD / 5  # of a flood a sample is published


def test_control_records_of_late_pages_are_bounded_too() -> None:
    telemetry = Log()
    telemetry.tick(500)
    telemetry.tick(2_500)
    loop = MemoryLoop(("a",))
    straggler = replace(telemetry.pages[0], controls=tuple(pins(_MAX_LATE_CONTROLS - 100)))
    for _ in range(3):
        loop.forecast._keep_late_controls(straggler)
    assert len(loop.forecast._late_controls) == _MAX_LATE_CONTROLS
    refused = 3 * len(straggler.controls) - _MAX_LATE_CONTROLS
    counted = loop.meter.registry.get_sample_value("harmony_dead_letters_total", {"code": "limit"})
    assert counted == refused
