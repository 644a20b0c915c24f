"""Control records on their way from their own topic into `plans`: in order, bounded per minute, each applied once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from agents.decide.controls import (
    MAX_CONTROLS_PER_MINUTE,
    MAX_FLEET_CONTROLS_PER_MINUTE,
    MINUTE_MS,
    ControlKernel,
    ControlStage,
)
from agents.decide.kernel import DecideKernel
from agents.decide.state import MAX_UNDECLARED_OVERRIDES, UNDECLARED_OVERRIDE_MS
from agents.planning.codec import CONTROLS_PARTITION, decode_plan
from agents.records import PlanRecord
from streams.log import LogRecord, OutRecord
from streams.meter import NullMeter
from streams.records.facts import Control
from streams.records.schema import encode_control, encode_sample, encode_tick
from tests.agents.decide.decide_runs import control, newest_commit, published
from tests.agents.planning.plan_samples import STEP_MS, STREAM, TOPICS, log, plan, policy, record, spec

T0_MS = 1_763_636_400_000  # a minute begins here


class Meter(NullMeter):
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        assert name == "dead_letters_total"
        self.counts[labels["code"]] += int(amount)


def written(controls: Sequence[Control], gap_ms: int = 0, first_offset: int = 0) -> list[LogRecord]:
    """The controls topic: a record each, so long apart."""
    return [LogRecord(first_offset + n, T0_MS + n * gap_ms, None, encode_control(c)) for n, c in enumerate(controls)]


def folded(kernel: ControlKernel, records: Sequence[LogRecord]) -> tuple[list[PlanRecord], list[OutRecord]]:
    """Plans and dead letters."""

    async def fold() -> list[OutRecord]:
        return [out async for emission in kernel.fold(records) for group in emission.outputs for out in group]

    outs = asyncio.run(fold())
    plans = [decode_plan(out.value) for out in outs if out.topic == TOPICS.plans]
    return plans, [out for out in outs if out.topic == TOPICS.dead_letters]


def kernel(meter: NullMeter | None = None) -> ControlKernel:
    return ControlKernel(TOPICS, STEP_MS, meter or NullMeter())


def pins(number: int, workload: str = "w") -> list[Control]:
    return [control("pin", workload, f"pin-{n}", replicas=n % 100) for n in range(number)]


def test_control_records_reach_the_plans_in_order() -> None:
    given = [*pins(300), control("pause", None)]
    plans, letters = folded(kernel(), written(given))
    assert [p.partition for p in plans] == [CONTROLS_PARTITION] * 2
    assert [c for p in plans for c in p.controls] == given
    assert [p.slot for p in plans] == [255, 300]
    assert not letters


def test_beyond_a_number_per_minute_they_are_refused_and_counted() -> None:
    meter = Meter()
    flood = pins(MAX_CONTROLS_PER_MINUTE + 500)
    stop = control("pause", None)  # the kill switch is heard all the same
    plans, letters = folded(kernel(meter), written([*flood, stop]))
    accepted = [c for p in plans for c in p.controls]
    assert accepted == [*flood[:MAX_CONTROLS_PER_MINUTE], stop]
    assert meter.counts == {"limit": 500}
    assert 0 < len(letters) <= 500
    assert {dict(out.headers)["reason"] for out in letters} == {b"limit"}


def test_the_next_minute_has_a_number_of_its_own() -> None:
    one = kernel()
    folded(one, written(pins(MAX_CONTROLS_PER_MINUTE + 1)))
    later = [LogRecord(5_000, T0_MS + MINUTE_MS, None, encode_control(control("unpin")))]
    plans, _ = folded(one, later)
    assert [c.action for p in plans for c in p.controls] == ["unpin"]


def test_the_fleets_own_are_bounded_too() -> None:
    meter = Meter()
    words = [control("pause" if n % 2 else "resume", None, f"c{n}") for n in range(MAX_FLEET_CONTROLS_PER_MINUTE + 9)]
    plans, _ = folded(kernel(meter), written(words))
    assert [c for p in plans for c in p.controls] == words[:MAX_FLEET_CONTROLS_PER_MINUTE]
    assert meter.counts == {"limit": 9}


def test_what_is_no_control_record_is_refused() -> None:
    meter = Meter()
    values = (b"{", encode_tick(T0_MS), encode_sample("requests", "w", "s", T0_MS, {"slo_total": 1.0}), None)
    records = [LogRecord(n, T0_MS, b"w", value) for n, value in enumerate(values)]
    plans, letters = folded(kernel(meter), records)
    assert (plans, len(letters), meter.counts) == ([], 3, {"decode": 1, "kind": 2})


class Logs:
    """A reader of a commits partition and of the controls topic."""

    def __init__(self, commits: Sequence[OutRecord], controls: Sequence[LogRecord]) -> None:
        self._commits = [LogRecord(n, T0_MS, out.key, out.value) for n, out in enumerate(commits)]
        self._controls = controls

    async def bounds(self, topic: str, _partition: int) -> tuple[int, int]:
        assert topic == TOPICS.commits
        return 0, len(self._commits)

    async def offset_at(self, topic: str, _partition: int, stamp_ms: int) -> int:
        assert topic == TOPICS.controls
        return next((r.offset for r in self._controls if r.stamp_ms >= stamp_ms), len(self._controls))

    async def read(self, _topic: str, _partition: int, start: int, end: int):  # type: ignore[no-untyped-def]
        for one in self._commits[start:end]:
            yield one


@pytest.mark.parametrize("seed", range(6))
def test_lives_that_end_anywhere_apply_the_same_records(seed: int) -> None:
    """Each starts from what the decide stage has committed, and every one refuses the same records."""
    rng = random.Random(seed)
    actions = ("pin", "unpin", "pause", "resume")
    given = [
        control(rng.choice(actions), f"w{rng.randrange(4)}", f"c{n}", replicas=rng.randrange(9))
        for n in range(2 * MAX_CONTROLS_PER_MINUTE)
    ]
    records = written(given, gap_ms=45)  # some 1,300 within a minute
    specs = [spec(f"w{n}") for n in range(4)]
    whole, _ = folded(kernel(), records)
    steady = DecideKernel(policy(*specs), STREAM, TOPICS)
    for one in log(*whole):
        steady.fold(one)

    topic: list[LogRecord] = []  # plans
    decide, commits, slot = DecideKernel(policy(*specs), STREAM, TOPICS), list[OutRecord](), 0
    while True:
        stage = ControlStage(TOPICS, STEP_MS, NullMeter())
        copier = asyncio.run(stage.restore(TOPICS.controls, 0, Logs(commits, records)))  # type: ignore[arg-type]
        start = copier.resume_offset or 0
        alive = True
        while alive and start < len(records):
            end = start + rng.randint(1, 400)
            plans, _ = folded(copier, records[start:end])
            start, slot = end, slot + 1
            group = [*plans, record(slot, plan("w0"))]
            alive = rng.random() < 0.8
            for one in group if alive else group[: rng.randint(0, len(group))]:
                topic.append(LogRecord(len(topic), 0, None, log(one)[0].value))
                commits += decide.fold(topic[-1]).commits
        if alive:
            break
        # Both end; what the decide stage had applied since its last commit record is applied again.
        decide = DecideKernel.restore(policy(*specs), STREAM, TOPICS, commit=newest_commit_of(commits))
        for one in topic[decide.resume_offset or 0 :]:
            commits += decide.fold(one).commits
    assert decide.state.operator == steady.state.operator
    assert decide.state.controls_offset == steady.state.controls_offset


def newest_commit_of(commits: Sequence[OutRecord]):  # type: ignore[no-untyped-def]
    from streams.log import Emission

    return newest_commit([Emission((), tuple(commits), 0)]) if commits else None


# What the decide stage makes of them.


def controls_plan(slot: int, *controls: Control, stamp_ms: int = T0_MS) -> PlanRecord:
    return PlanRecord(CONTROLS_PARTITION, slot, 0, STEP_MS, "", "", (), controls, stamp_ms)


def test_an_order_holds_from_the_next_plan_on_and_lasts() -> None:
    stopped = controls_plan(7, control("pause", None))
    records = log(record(0, plan(proposed=6)), stopped, record(1, plan(proposed=8)), record(2, plan(proposed=8)))
    k = DecideKernel(policy(), STREAM, TOPICS)
    emissions = [k.fold(r) for r in records]
    decisions, _ = published(emissions)
    assert [d.reason for d in decisions] == ["chance", "kill_switch", "kill_switch"]
    assert [bool(e.commits) for e in emissions] == [True, False, True, True]  # a commit record per plan alone
    assert k.state.clock_ms == decisions[-1].origin_ts_ms  # which the broker's clock does not move
    again = DecideKernel.restore(policy(), STREAM, TOPICS, commit=newest_commit(emissions[:3]))
    assert (again.state.paused, again.state.controls_offset) == (True, 7)


def test_a_copy_of_an_older_order_changes_nothing() -> None:
    k = DecideKernel(policy(), STREAM, TOPICS)
    for one in log(
        controls_plan(7, control("resume", None)), controls_plan(9, control("pause", None, "c-9")),
        controls_plan(7, control("resume", None)),
    ):  # fmt: skip
        k.fold(one)
    assert k.state.paused


def test_orders_about_undeclared_workloads_are_bounded_and_expire() -> None:
    k = DecideKernel(policy(), STREAM, TOPICS)
    strangers = [control("pin", f"x{n}", replicas=1) for n in range(MAX_UNDECLARED_OVERRIDES + 3)]
    declared = control("pin", "w", replicas=5)
    first, second, third, ordinary, later = log(
        controls_plan(1, *strangers, declared),
        controls_plan(2, control("unpin", "x0"), control("pin", "late", replicas=1)),
        controls_plan(3, control("pin", "x1", "again", replicas=2), stamp_ms=T0_MS + UNDECLARED_OVERRIDE_MS),
        record(0, plan()),
        controls_plan(4, stamp_ms=T0_MS + UNDECLARED_OVERRIDE_MS + 1),
    )
    (letters,) = k.fold(first).outputs
    assert [dict(out.headers)["reason"] for out in letters] == [b"limit"] * 3
    assert len(k.state.operator) == MAX_UNDECLARED_OVERRIDES + 1
    assert k.fold(second).outputs == ()  # there is room for one again
    assert "late" in k.state.operator
    k.fold(third)
    k.fold(ordinary)
    assert len(k.state.operator) == MAX_UNDECLARED_OVERRIDES + 1
    k.fold(later)
    assert sorted(k.state.operator) == ["w", "x1"]
    assert list(k.state.undeclared_ms) == ["x1"]


def test_what_is_no_longer_declared_expires_from_the_restart_on() -> None:
    k = DecideKernel(policy(), STREAM, TOPICS)
    emissions = [k.fold(r) for r in log(controls_plan(1, control("pin", "w", replicas=5)), record(0, plan()))]
    again = DecideKernel.restore(policy(spec("other")), STREAM, TOPICS, commit=newest_commit(emissions))
    assert list(again.state.undeclared_ms) == ["w"]
