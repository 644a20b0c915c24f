"""Decide stage and actuator together: what one gives, the other obeys, also when facts lag and operators speak."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.actuation.guard import PIN, ApplyGuard
from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_command
from agents.records import Command
from infra.actuate.actuator import Event
from infra.actuate.controller import CommandController
from infra.actuate.pull import Answers
from streams.records.facts import Control
from tests.agents.planning.plan_samples import STEP_MS, STREAM, TOPICS, log, plan, policy, record, spec
from tests.infra.actuate.test_controller import Fleet


class Loop:
    """A decide kernel whose commands go to a controller; the fleet's facts come back `lag` slots later."""

    def __init__(self, lag: int = 0, pull: bool = False) -> None:
        self.fleet = Fleet(3)
        self.now_ms, self.slot = 0, 0
        self.policy = policy(spec("w"))
        self._kernel = DecideKernel(self.policy, STREAM, TOPICS)
        actuator = Answers("keda") if pull else self.fleet
        declared = {w.id: w for w in self.policy.workloads}
        self.controller = CommandController(actuator, ApplyGuard(), lambda: self.now_ms, declared=declared)
        self._pull = pull
        self._seen = [3] * (lag + 1)

    def step(self, proposed: int, *controls: Control) -> Event | None:
        """One slot: a plan, its decision, and what the actuator makes of the command, if there is one."""
        made = record(self.slot, plan("w", self._seen[0], proposed), controls=controls)
        emission = self._kernel.fold(log(*[made] * (self.slot + 1))[-1])
        self.slot += 1
        self.now_ms = self.slot * STEP_MS + STREAM.grace_ms
        commands = [decode_command(r.value or b"") for g in emission.outputs for r in g if r.topic == TOPICS.commands]
        event = asyncio.run(self._obey(commands[0])) if commands else None
        self._seen = [*self._seen[1:], self.fleet.replicas]
        return event

    async def _obey(self, command: Command) -> Event:
        event = await self.controller.handle(command)
        told = self.controller.answer("w")
        if self._pull and told is not None:
            self.fleet.replicas = told
        return event


@pytest.mark.parametrize("pull", [False, True])
@pytest.mark.parametrize("lag", [0, 1, 2])
@given(proposals=st.lists(st.integers(1, 30), min_size=1, max_size=25))
@settings(max_examples=25)
def test_every_command_is_obeyed_however_the_facts_lag(pull: bool, lag: int, proposals: list[int]) -> None:
    loop = Loop(lag, pull)
    for proposed in proposals:
        event = loop.step(proposed)
        assert event is not None
        assert event.status in ("applied", "accepted"), event
        assert loop.fleet.replicas == event.wanted
    for _ in range(lag + 1):
        loop.step(proposals[-1])
    assert loop.fleet.replicas == proposals[-1]


def control(action: str, **fields: object) -> Control:
    return Control(action, 0, action, "w", by="ada", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("pull", [False, True])
def test_a_pin_of_the_operator_is_obeyed_over_another_writer_and_its_author_is_on_record(pull: bool) -> None:
    loop = Loop(lag=1, pull=pull)
    loop.step(5)
    event = loop.step(4, control("pin", replicas=12, reason="launch"))
    assert event is not None
    assert (event.why, loop.fleet.replicas) == (PIN, 12)
    if not pull:
        loop.fleet.replicas = 2  # by somebody who does not know
    loop.step(4)
    assert loop.fleet.replicas == 12
    loop.step(4, control("unpin"))
    loop.step(4)
    assert loop.fleet.replicas == 4


@pytest.mark.parametrize("pull", [False, True])
def test_a_pause_lets_the_lease_run_out_and_the_count_stays(pull: bool) -> None:
    loop = Loop(pull=pull)
    loop.step(5)
    assert loop.step(9, control("pause")) is None, "no command"
    assert loop.controller.answer("w") == 5, "the lease is still in force"
    for _ in range(5):
        assert loop.step(9) is None
    assert loop.controller.answer("w") is None
    assert loop.fleet.replicas == 5
    loop.step(9, control("resume"))
    assert loop.fleet.replicas == 9
