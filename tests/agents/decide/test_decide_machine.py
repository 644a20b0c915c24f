"""Guards and leases as hypothesis drives them: any plans, words and deaths; safety holds and history does not split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agents.actuation.guard import ApplyGuard
from agents.decide.kernel import STAGE, DecideKernel
from agents.decide.records import decode_command, decode_decision
from agents.policy import Policy
from agents.records import Command, Decision
from streams.log import LogRecord
from streams.records.facts import Control
from streams.runtime.commits import CommitAssembler
from tests.agents.planning.plan_samples import FREE, STEP_MS, STREAM, TOPICS, inputs, log, plan, policy, record, spec

NAMES = ("a", "b", "c")
LIMITS = replace(
    FREE,
    warm_up_steps=2,
    stabilization_down_s=15.0,
    up_replicas=3,
    up_ratio=0.5,
    down_replicas=2,
    down_ratio=0.2,
    fleet_max_gpus=40,
    fleet_max_power_w=9_000.0,
    fleet_reclaim=True,
    fleet_removals_per_minute=6,
)


def policies() -> tuple[Policy, ...]:
    """Three that may follow each other: other bounds, and a raised epoch."""
    specs = (spec("a", max_replicas=20), spec("b", gpus_per_replica=2, priority=3), spec("c", mode="observe"))
    wider = (spec("a", max_replicas=30), *specs[1:])
    return policy(*specs, guards=LIMITS), policy(*wider, guards=LIMITS), policy(*wider, guards=LIMITS, epoch=2)


class DecideMachine(RuleBasedStateMachine):
    """The decide stage of a fleet, its three topics, and an actuator that obeys late, twice and out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.slot = 0
        self.policy_at = 0
        self.words: list[Control] = []
        self.rows: list[LogRecord] = []
        self.read_to = 0
        self.decisions: list[bytes] = []
        self.commands: list[bytes] = []
        self.commits: list[LogRecord] = []
        self.bodies: dict[str, bytes] = {}

    @initialize()
    def begin(self) -> None:
        self.policies = policies()
        self.kernel = DecideKernel(self.policies[0], STREAM, TOPICS)

    # What comes in.

    @rule(
        name=st.sampled_from(NAMES),
        action=st.sampled_from(("pin", "unpin", "pause", "resume", "mode")),
        replicas=st.integers(0, 60),
        slots=st.integers(1, 5),
        mode=st.sampled_from(("act", "observe")),
        everywhere=st.booleans(),
    )
    def word(self, name: str, action: str, replicas: int, slots: int, mode: str, everywhere: bool) -> None:
        whole_fleet = everywhere and action in ("pause", "resume")
        self.words.append(
            Control(
                f"op-{len(self.words)}-{self.slot}", self.slot * STEP_MS, action, None if whole_fleet else name,
                mode=mode, replicas=replicas, until_ts_ms=(self.slot + slots) * STEP_MS, by="op",
            )
        )  # fmt: skip

    @rule(data=st.data(), hold_back=st.booleans())
    def plan(self, data: st.DataObject, hold_back: bool) -> None:
        plans = []
        for name in NAMES:
            current = data.draw(st.none() | st.integers(0, 25))
            told: dict[str, Any] = {
                "arrival_rate": data.draw(st.sampled_from((None, 1.0, 9.0))),
                "coverage_ratio": data.draw(st.sampled_from((1.0, 1.0, 0.4))),
                "cliff": data.draw(st.sampled_from((False, False, True))),
                "oldest_age_ms": data.draw(st.sampled_from((3_000, 3_000, 10**7))),
            }
            refused = data.draw(st.sampled_from((None,) * 6 + ("silent", "retired", "warming_up")))
            proposed = data.draw(st.none() | st.integers(0, 40))
            reactive = data.draw(st.integers(0, 15))
            power = data.draw(st.sampled_from((None, 300.0, 450.0)))
            told_of = {"inputs": inputs(**told), "refused": refused, "reactive": reactive, "power_w": power}
            plans.append(plan(name, current, proposed, **told_of))
        words: tuple[Control, ...] = ()
        if not hold_back:
            words, self.words = tuple(self.words), []
        (row,) = log(record(self.slot, *plans, controls=words))
        self.rows.append(LogRecord(len(self.rows), 0, None, row.value))
        self.slot += 1

    @precondition(lambda self: self.rows)
    @rule(back=st.integers(1, 4))
    def an_old_plan_again(self, back: int) -> None:
        old = self.rows[-min(back, len(self.rows))]
        self.rows.append(LogRecord(len(self.rows), 0, None, old.value))

    # What the stage does.

    @rule(most=st.integers(1, 5))
    def fold(self, most: int) -> None:
        for row in self.rows[self.read_to : self.read_to + most]:
            self._publish(row, whole=True)

    def _publish(self, row: LogRecord, *, whole: bool, written: int = 0) -> None:
        emission = self.kernel.fold(row)
        outputs = [r for group in emission.outputs for r in group]
        for out in outputs if whole else outputs[:written]:
            value = out.value or b""
            if out.topic == TOPICS.decisions:
                self.decisions.append(value)
                self._check(decode_decision(value), value)
            else:
                self.commands.append(value)
        if whole:
            self.read_to = row.offset + 1
            self.commits += [LogRecord(len(self.commits), 0, c.key, c.value) for c in emission.commits]

    @rule(written=st.integers(0, 6))
    def die_while_publishing(self, written: int) -> None:
        if self.read_to < len(self.rows):
            self._publish(self.rows[self.read_to], whole=False, written=written)
        self._live_again()

    @rule(to=st.integers(0, 2))
    def another_policy(self, to: int) -> None:
        self.policy_at = max(self.policy_at, to)
        self._live_again()

    def _live_again(self) -> None:
        assembler = CommitAssembler(STAGE, 0)
        for commit in self.commits:
            assembler.feed(commit)
        self.kernel = DecideKernel.restore(
            self.policies[self.policy_at], STREAM, TOPICS, commit=assembler.newest, published=self.decisions
        )
        self.read_to = self.kernel.resume_offset or 0

    # What must hold.

    def _check(self, d: Decision, value: bytes) -> None:
        assert self.bodies.setdefault(d.decision_id, value) == value, "one id, two bodies"
        final, current = d.replicas.final, d.replicas.current
        last = d.guards[-1].guard if d.guards else ""
        pinned = d.reason == "pin"
        if final is None or current is None:
            assert d.command_id is None or pinned
            return
        # Which of the policies decided is not in the record; a count may always be brought back into its bounds.
        bounds = [w.max_replicas for p in self.policies for w in p.workloads if w.id == d.workload]
        if d.command_id is not None and not pinned:
            assert final <= max(*bounds, current), last
            assert d.mode == "act"
            assert d.reason != "kill_switch"
        doubt = d.inputs is not None and (d.inputs.cliff or d.inputs.coverage_ratio < 0.5)
        if doubt and d.command_id is not None and not pinned and current <= min(bounds):
            assert final >= current, f"{d.workload} went down in doubt: {[g.guard for g in d.guards]}"

    def teardown(self) -> None:
        if not hasattr(self, "kernel"):
            return
        while self.read_to < len(self.rows):
            self.fold(50)
        commands = [decode_command(value) for value in self.commands]
        self._check_leases(commands)
        self._check_actuator(commands)

    def _check_leases(self, commands: list[Command]) -> None:
        seen: dict[tuple[str, int, int], Command] = {}
        for c in commands:
            assert seen.setdefault((c.workload, c.epoch, c.sequence), c) == c, "one place in the order, two commands"
            assert c.issued_ts_ms < c.valid_until_ts_ms
            assert c.sequence * STEP_MS == c.issued_ts_ms

    def _check_actuator(self, commands: list[Command]) -> None:
        """Read backwards, forwards and backwards again: an older command never wins over a newer one."""
        for name in NAMES:
            own = [c for c in commands if c.workload == name]
            guard, newest, current = ApplyGuard(), (0, 0), own[0].expected_current if own else 0
            for c in [*own[::-1], *own, *own[::-1]]:
                verdict = guard.check(c, c.issued_ts_ms, current)
                if verdict.accepted:
                    assert (c.epoch, c.sequence) >= newest
                    newest = c.epoch, c.sequence
                if verdict.apply and verdict.replicas is not None:
                    current = verdict.replicas


TestDecideMachine = DecideMachine.TestCase
TestDecideMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
