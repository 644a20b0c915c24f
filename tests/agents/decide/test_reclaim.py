"""A GPU budget that binds: what comes free is kept for higher priorities, and lower ones give way where told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decide.kernel import DecideKernel
from agents.policy import GuardLimits, Policy, WorkloadSpec
from agents.records import Decision, Limit
from streams.log import LogRecord
from tests.agents.decide.decide_runs import kernel, published
from tests.agents.planning.plan_samples import FREE, STEP_MS, STREAM, inputs, log, plan, policy, record, spec

LEASE_STEPS = 1 + STREAM.grace_ms // STEP_MS + FREE.lease_steps


@dataclass
class Fleet:
    """Replicas that obey: what is ordered shows at the next slot, what is ordered away `drain` slots later.

    Attributes:
        placed: workloads of each partition, in the order in which the partitions are decided.
    """

    policy: Policy
    replicas: dict[str, int]
    placed: Sequence[Sequence[str]]
    drain: int = 0
    slot: int = 0
    offset: int = 0
    decisions: dict[str, Decision] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kernel: DecideKernel = kernel(self.policy)
        self._going: list[tuple[int, str, int]] = []

    def live(self, wishes: Mapping[str, int], slots: int = 1, **changes: Mapping[str, Any]) -> dict[str, int]:
        """So many slots in which plans ask for this; `changes` of a workload's plan."""
        for _ in range(slots):
            for partition, names in enumerate(self.placed):
                plans = [
                    plan(n, self.replicas[n], **{"proposed": wishes[n], "reactive": 0, **changes.get(n, {})})
                    for n in names
                ]
                (told,) = log(record(self.slot, *plans, partition=partition))
                emission = self.kernel.fold(LogRecord(self.offset, 0, None, told.value))
                self.offset += 1
                self.decisions |= {d.workload: d for d in published([emission])[0]}
            self.slot += 1
            self._obey()
        return dict(self.replicas)

    def _obey(self) -> None:
        for name, decision in self.decisions.items():
            final = decision.replicas.final
            assert final is not None
            if final < self.replicas[name]:
                self._going.append((self.slot + self.drain, name, final))
            else:
                self.replicas[name] = final
        for due, name, final in self._going:
            if due <= self.slot:
                self.replicas[name] = min(self.replicas[name], final)
        self._going = [g for g in self._going if g[0] > self.slot]

    def reason(self, name: str) -> str:
        return self.decisions[name].reason


def taking(most: int, **changes: Any) -> GuardLimits:
    return replace(FREE, fleet_max_gpus=most, fleet_reclaim=True, **changes)


VIP = spec("vip", priority=9, max_replicas=20)
MID = spec("mid", priority=5, min_replicas=2)
LOW = spec("low", priority=1, min_replicas=1)
NAMES = (("low", "mid"), ("vip",))


def test_the_lowest_priority_gives_first_and_down_to_its_minimum() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    assert fleet.live({"vip": 5, "mid": 5, "low": 5}, 3) == {"vip": 5, "mid": 5, "low": 2}
    assert fleet.live({"vip": 9, "mid": 5, "low": 5}, 3) == {"vip": 9, "mid": 2, "low": 1}
    assert fleet.live({"vip": 20, "mid": 5, "low": 5}, 9) == {"vip": 9, "mid": 2, "low": 1}


def test_what_was_given_up_comes_back_when_it_is_free() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    fleet.live({"vip": 9, "mid": 5, "low": 5}, 4)
    assert fleet.live({"vip": 3, "mid": 5, "low": 5}, 4) == {"vip": 3, "mid": 5, "low": 4}


def test_each_says_why() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    fleet.live({"vip": 4, "mid": 5, "low": 5})
    assert (fleet.reason("vip"), fleet.reason("low")) == ("fleet_budget", "chance")
    fleet.live({"vip": 4, "mid": 5, "low": 5})
    assert fleet.reason("low") == "reclaim"
    assert fleet.decisions["low"].guards[-1].reason == "2 GPUs are given up for vip, of higher priority"


def test_who_lacks_something_for_one_slot_alone_takes_nothing() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES[::-1])
    fleet.live({"vip": 5, "mid": 5, "low": 5})
    assert fleet.live({"vip": 2, "mid": 5, "low": 5}, 3) == {"vip": 2, "mid": 5, "low": 5}


def test_nothing_is_given_up_where_it_is_not_told_to_nor_among_equals() -> None:
    start = {"vip": 2, "mid": 5, "low": 5}
    kept = Fleet(policy(VIP, MID, LOW, guards=replace(FREE, fleet_max_gpus=12)), dict(start), NAMES)
    assert kept.live({"vip": 9, "mid": 5, "low": 5}, 6) == start
    equals = policy(*(replace(s, priority=3) for s in (VIP, MID, LOW)), guards=taking(12))
    assert Fleet(equals, dict(start), NAMES).live({"vip": 9, "mid": 5, "low": 5}, 6) == start


def test_what_comes_free_is_kept_for_the_higher_priority_whoever_is_asked_first() -> None:
    guards = replace(FREE, fleet_max_gpus=12)
    fleet = Fleet(policy(VIP, MID, LOW, guards=guards), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    fleet.live({"vip": 4, "mid": 5, "low": 5})
    fleet.live({"vip": 4, "mid": 3, "low": 9})  # two come free, and low is asked before vip
    after = fleet.live({"vip": 4, "mid": 3, "low": 9})
    assert after == {"vip": 4, "mid": 3, "low": 5}
    kept = "5 GPUs are left in the fleet, 1 per replica; 2 more are kept for higher priorities"
    assert fleet.decisions["low"].guards[0].reason == kept


def test_nobody_gives_what_does_not_make_a_whole_replica() -> None:
    big = replace(VIP, gpus_per_replica=8)
    fleet = Fleet(policy(big, MID, LOW, guards=taking(18)), {"vip": 1, "mid": 5, "low": 5}, NAMES)
    assert fleet.live({"vip": 2, "mid": 5, "low": 5}, 9) == {"vip": 1, "mid": 5, "low": 5}
    fleet = Fleet(policy(big, MID, LOW, guards=taking(19)), {"vip": 1, "mid": 5, "low": 5}, NAMES)
    assert fleet.live({"vip": 2, "mid": 5, "low": 5}, 4) == {"vip": 2, "mid": 2, "low": 1}


def test_replicas_that_drain_are_not_asked_for_twice() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES, drain=4)
    wishes = {"vip": 4, "mid": 5, "low": 5}
    finals = []
    for _ in range(9):
        fleet.live(wishes)
        finals.append({n: d.replicas.final for n, d in fleet.decisions.items()})
    assert {f["low"] for f in finals} == {5, 3}
    assert {f["mid"] for f in finals} == {5}
    assert fleet.replicas == {"vip": 4, "mid": 5, "low": 3}


def test_the_doubted_give_nothing_and_after_a_lease_the_next_are_asked() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    wishes = {"vip": 4, "mid": 5, "low": 5}
    doubt = {"low": {"inputs": inputs(cliff=True)}}
    assert fleet.live(wishes, 3, **doubt) == {"vip": 2, "mid": 5, "low": 5}
    assert fleet.live(wishes, LEASE_STEPS, **doubt) == {"vip": 4, "mid": 3, "low": 5}


def test_the_lowest_give_first_however_long_somebody_lacks_something() -> None:
    """Who gave up replicas lacks them all the while, and who grows for long has a claim all the while."""
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(30)), {"vip": 2, "mid": 12, "low": 16}, (("low", "mid", "vip"),))
    for wanted in range(3, 3 + 2 * LEASE_STEPS):
        after = fleet.live({"vip": min(wanted, 14), "mid": 12, "low": 16}, 1)
        assert after["mid"] == 12
    settled = fleet.live({"vip": 14, "mid": 12, "low": 16}, 2)
    assert settled == {"vip": 14, "mid": 12, "low": 4}
    assert fleet.live({"vip": 14, "mid": 12, "low": 16}, 2 * LEASE_STEPS) == settled
    assert fleet.live({"vip": 15, "mid": 12, "low": 16}, 3) == {"vip": 15, "mid": 12, "low": 3}


def test_a_declared_floor_takes_what_it_needs_and_keeps_what_it_has() -> None:
    event = {"vip": {"standing": (Limit("schedule", 6, None, "launch"),)}}
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    assert fleet.live({"vip": 2, "mid": 5, "low": 5}, 3, **event) == {"vip": 6, "mid": 5, "low": 1}
    work = {"low": {"standing": (Limit("batch", 4, None, "work"),)}}
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    assert fleet.live({"vip": 4, "mid": 5, "low": 5}, 3 + LEASE_STEPS, **work) == {"vip": 4, "mid": 4, "low": 4}


def test_between_plans_a_claim_stands() -> None:
    fleet = Fleet(policy(VIP, MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, (("vip",), ("low", "mid")))
    fleet.live(fleet.replicas)  # so that the budget knows who is there
    fleet.live({"vip": 4, "mid": 5, "low": 5})
    between = {"vip": {"proposed": None, "reactive": 1, "risks": ()}}
    assert fleet.live({"vip": 4, "mid": 5, "low": 5}, 1, **between)["low"] == 3


def test_who_watches_only_takes_nothing_and_gives_nothing() -> None:
    watching = Fleet(
        policy(replace(VIP, mode="observe"), MID, LOW, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES
    )
    assert watching.live({"vip": 9, "mid": 5, "low": 5}, 4)["low"] == 5
    low = replace(LOW, mode="observe")
    fleet = Fleet(policy(VIP, MID, low, guards=taking(12)), {"vip": 2, "mid": 5, "low": 5}, NAMES)
    fleet.live({"vip": 4, "mid": 5, "low": 5}, 3)
    assert fleet.replicas["mid"] == 3
    assert fleet.decisions["low"].command_id is None


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, dict[str, int]]:
    specs: list[WorkloadSpec] = []
    for n in range(draw(st.integers(2, 6))):
        low = draw(st.integers(0, 3))
        specs.append(
            spec(
                f"w{n}",
                priority=draw(st.integers(0, 3)),
                min_replicas=low,
                max_replicas=low + draw(st.integers(0, 8)),
                gpus_per_replica=draw(st.sampled_from((1, 1, 2, 4, 8))),
            )
        )
    start = {s.id: draw(st.integers(s.min_replicas, s.max_replicas)) for s in specs}
    wishes = {s.id: draw(st.integers(s.min_replicas, s.max_replicas)) for s in specs}
    held = sum(start[s.id] * s.gpus_per_replica for s in specs)
    names = draw(st.permutations([s.id for s in specs]))
    cut = draw(st.integers(0, len(names)))
    guards = taking(held + draw(st.integers(0, 12)), up_ratio=1.0, up_replicas=draw(st.sampled_from((1, 4, 100))))
    return Fleet(policy(*specs, guards=guards), start, (names[:cut], names[cut:]), draw(st.integers(0, 2))), wishes


@settings(max_examples=100, deadline=None)
@given(fleets())
def test_it_settles_and_then_nobody_lacks_what_lower_priorities_could_give(made: tuple[Fleet, dict[str, int]]) -> None:
    fleet, wishes = made
    specs = {s.id: s for s in fleet.policy.workloads}
    most = fleet.policy.guards.fleet_max_gpus
    assert most is not None

    def gpus(names: Sequence[str], *, spare: bool = False) -> int:
        return sum(
            (fleet.replicas[n] - (specs[n].min_replicas if spare else 0)) * specs[n].gpus_per_replica for n in names
        )

    fleet.live(fleet.replicas)  # a budget knows who is there
    for _ in range(50):
        fleet.live(wishes)
        assert gpus(list(specs)) <= most
        assert all(fleet.replicas[n] >= s.min_replicas for n, s in specs.items())
    settled = dict(fleet.replicas)
    assert fleet.live(wishes, 12) == settled, "it never comes to rest"
    free = most - gpus(list(specs))
    for name, own in specs.items():
        if fleet.replicas[name] < wishes[name]:
            lower = [n for n, s in specs.items() if s.priority < own.priority]
            assert free + gpus(lower, spare=True) < own.gpus_per_replica, (name, settled, wishes)
