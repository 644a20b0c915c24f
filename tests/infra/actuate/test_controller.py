"""The core around the guard: what it lets near a target, what it remembers before it acts, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.actuation.guard import ApplyGuard, Overrides, RateCaps
from agents.policy import TargetRef, WorkloadSpec
from agents.records import Command, Pin, Target
from infra.actuate.actuator import Event, NotApplied, Overtaken, ReplicaChange
from infra.actuate.controller import CommandController
from infra.actuate.store import OverridesFile, Store, write_atomic
from infra.console.errors import HarmonyError
from tests.agents.actuation.test_apply_guard import command

NOW = 1_000
DECLARED = {"w": WorkloadSpec("w", TargetRef("apps/v1", "Deployment", "prod", "w"), 1, 10)}


class Fleet:
    """A target in memory that may fail; `fails` are raised first, one per write."""

    name = "fleet"
    done = "applied"

    def __init__(self, replicas: int = 3) -> None:
        self.replicas = replicas
        self.fails: list[NotApplied] = []
        self.blind: NotApplied | None = None
        self.orders: list[ReplicaChange] = []
        self.before_apply: Callable[[], None] = lambda: None

    async def observe(self, workload: str, target: Target, expected: int | None, in_force: int | None) -> int:
        if self.blind is not None:
            raise self.blind
        return self.replicas

    async def apply(self, change: ReplicaChange) -> str:
        self.before_apply()
        self.orders.append(change)
        if self.fails:
            raise self.fails.pop(0)
        self.replicas = change.replicas
        return ""


def controller_on(fleet: Fleet, **options: object) -> tuple[CommandController, list[Event]]:
    told: list[Event] = []
    guard = options.pop("guard", None) or ApplyGuard()
    return CommandController(fleet, guard, lambda: NOW, report=told.append, **options), told  # type: ignore[arg-type]


def handle(controller: CommandController, *commands: Command) -> list[Event]:
    return [asyncio.run(controller.handle(c)) for c in commands]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": "v"}, "undeclared"),
        ({"target": Target("apps/v1", "Deployment", "kube-system", "w")}, "other_target"),
        ({"target": Target("apps/v1", "StatefulSet", "prod", "w")}, "other_target"),
        ({"replicas": 0}, "out_of_bounds"),
        ({"replicas": 11}, "out_of_bounds"),
    ],
)
def test_a_command_may_touch_only_what_is_declared(changes: dict[str, object], reason: str) -> None:
    fleet = Fleet()
    controller, _ = controller_on(fleet, declared=DECLARED)
    (event,) = handle(controller, msgspec.structs.replace(command(1), **changes))
    assert (event.status, event.reason, fleet.orders) == ("refused", reason, [])
    assert handle(controller, command(1))[0].status == "applied"


def test_a_pin_in_the_log_may_leave_the_bounds_but_not_the_target() -> None:
    fleet = Fleet()
    controller, _ = controller_on(fleet, declared=DECLARED)
    handle(controller, command(1, replicas=15, reason="pin"), command(2, replicas=4, reason="pin", workload="v"))
    assert fleet.replicas == 15


@pytest.mark.parametrize("forged", [2, 3, 2**31])
def test_a_forged_epoch_deafens_nobody(tmp_path: Path, forged: int) -> None:
    fleet = Fleet()
    with Store(tmp_path) as store:
        controller, told = controller_on(fleet, guard=store.guard(10, RateCaps(), None, 1), store=store)
        handle(controller, command(1))
        (event,) = handle(controller, command(1, replicas=9, expected=5, epoch=forged))
        assert (event.status, event.reason, fleet.replicas) == ("refused", "epoch_jump", 5)
        assert "takes at most 1" in event.detail
        assert f"set advanced.planning.epoch to {forged}" in event.detail
        assert told[-1] == event
        assert handle(controller, command(2, replicas=7, expected=5))[0].status == "applied"
    with Store(tmp_path) as store:
        controller, _ = controller_on(fleet, guard=store.guard(10, RateCaps(), None, 1), store=store)
        assert handle(controller, command(3, replicas=8, expected=7))[0].status == "applied"


def test_a_forged_sequence_deafens_nobody(tmp_path: Path) -> None:
    fleet = Fleet()
    with Store(tmp_path) as store:
        controller, told = controller_on(fleet, guard=store.guard(10, RateCaps(), 60_000, 1, NOW), store=store)
        handle(controller, command(1))
        forged = command(2**40, replicas=9, expected=5)
        controller.admit(forged)
        (event,) = handle(controller, forged)
        assert (event.status, event.reason, fleet.replicas) == ("refused", "sequence_jump", 5)
        assert "at most 61 can have come" in event.detail
        assert "see who writes commands" in event.detail
        assert told[-1] == event
        assert handle(controller, command(2, replicas=7, expected=5))[0].status == "applied"
    with Store(tmp_path) as store:
        controller, _ = controller_on(fleet, guard=store.guard(10, RateCaps(), 60_000, 1, NOW), store=store)
        assert handle(controller, command(3, replicas=8, expected=7))[0].status == "applied"


def test_a_target_that_cannot_be_read_is_left_alone() -> None:
    fleet = Fleet()
    fleet.blind = NotApplied("no route")
    controller, told = controller_on(fleet)
    (event,) = handle(controller, command(1))
    assert (event.status, event.reason, event.detail) == ("failed", "not_observed", "no route")
    assert fleet.orders == []
    assert told == [event]


def test_overtaken_by_another_writer_it_looks_and_judges_again() -> None:
    fleet = Fleet(3)
    fleet.fails = [Overtaken("conflict")]
    fleet.before_apply = lambda: setattr(fleet, "replicas", 9) if not fleet.orders else None
    controller, _ = controller_on(fleet)
    (event,) = handle(controller, command(1, replicas=5, expected=3))
    assert (event.status, event.reason, fleet.replicas) == ("refused", "changed_by_others", 9)


def test_overtaken_by_a_writer_that_changed_something_else_it_writes_at_last() -> None:
    fleet = Fleet(3)
    fleet.fails = [Overtaken("conflict"), Overtaken("conflict")]
    controller, _ = controller_on(fleet, guard=ApplyGuard(caps=RateCaps(max_added=2)))
    (event,) = handle(controller, command(1))
    assert (event.status, fleet.replicas, len(fleet.orders)) == ("applied", 5, 3), "nor do the attempts use up the cap"


@pytest.mark.parametrize(("sure", "left"), [(True, 2), (False, 0)])
def test_a_failure_uses_up_the_cap_unless_nothing_was_surely_changed(sure: bool, left: int) -> None:
    fleet = Fleet(3)
    fleet.fails = [NotApplied("gone", sure=sure)]
    controller, _ = controller_on(fleet, guard=ApplyGuard(caps=RateCaps(max_added=2)))
    events = handle(controller, command(1), command(2, expected=3))
    assert [e.status for e in events] == ["failed", "applied" if left else "accepted"]
    assert fleet.replicas == 3 + left


def test_what_it_obeys_is_on_disk_before_it_obeys(tmp_path: Path) -> None:
    fleet = Fleet()
    with Store(tmp_path) as store:
        controller, _ = controller_on(fleet, store=store)

        def look() -> None:
            kept = ApplyGuard.restore((tmp_path / "guard.json").read_bytes()).leases["w"]
            assert (kept.sequence, kept.replicas) == (7, 5)

        fleet.before_apply = look
        handle(controller, command(7))
    assert fleet.replicas == 5


def test_without_memory_it_does_not_act(tmp_path: Path) -> None:
    fleet = Fleet()
    with Store(tmp_path / "d") as store:
        controller, _ = controller_on(fleet, store=store)
        (tmp_path / "d" / "guard.json").mkdir()
        with pytest.raises(HarmonyError, match="must not act"):
            handle(controller, command(7))
    assert fleet.orders == []


def test_a_newer_command_a_pin_and_the_kill_switch_each_end_an_attempt_under_way(tmp_path: Path) -> None:
    words = OverridesFile(tmp_path / "words.json")
    fleet = Fleet()
    controller, _ = controller_on(fleet, overrides=words)
    handle(controller, command(7))
    change = fleet.orders[0]
    assert change.still_wanted()
    words.change(lambda _: Overrides(stopped="x"))
    assert not change.still_wanted()
    words.change(lambda _: Overrides(pins={"w": Pin(9, NOW + 1)}))
    assert not change.still_wanted()
    words.change(lambda _: Overrides(pins={"w": Pin(9, NOW)}))
    assert change.still_wanted(), "a pin that has ended"
    controller.admit(command(8))
    assert not change.still_wanted()


def test_what_is_refused_outright_ends_no_attempt_under_way() -> None:
    fleet = Fleet()
    controller, _ = controller_on(fleet, declared=DECLARED)
    handle(controller, command(7))
    controller.admit(command(10**6, replicas=-1))
    controller.admit(command(10**6, target=Target("apps/v1", "Deployment", "else", "w")))
    assert fleet.orders[0].still_wanted()


def test_renewals_are_no_news_and_a_refusal_is_told_once() -> None:
    fleet = Fleet()
    controller, told = controller_on(fleet)
    handle(controller, command(1), command(2, expected=5), command(3, expected=5))
    fleet.replicas = 9
    handle(controller, command(4, expected=5), command(5, expected=5))
    assert [(e.status, e.reason) for e in told] == [("applied", "applied"), ("refused", "changed_by_others")]


def test_a_dry_run_says_each_change_once_and_uses_up_no_cap() -> None:
    class Pretend(Fleet):
        async def apply(self, change: ReplicaChange) -> str:
            return ""

    controller, told = controller_on(Pretend(), guard=ApplyGuard(caps=RateCaps(max_added=2)), dry_run=True)
    handle(controller, command(1), command(2), command(3))
    assert [(e.status, e.before, e.after) for e in told] == [("applied", 3, 5)]


def test_the_words_of_a_damaged_file_are_a_thrown_kill_switch(tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    file.write_text('{"stopped": null, "pinz": {}}')
    fleet = Fleet()
    controller, _ = controller_on(fleet, overrides=OverridesFile(file))
    (event,) = handle(controller, command(1))
    assert (event.reason, fleet.orders) == ("stopped", [])
    assert controller.answer("w") is None
    with pytest.raises(HarmonyError, match="kill switch"):
        OverridesFile(file).change(lambda w: w)


def test_a_words_file_that_goes_away_takes_no_word_back(tmp_path: Path) -> None:
    words = OverridesFile(tmp_path / "words.json")
    words.change(lambda _: Overrides(stopped="x"))
    fleet = Fleet()
    controller, _ = controller_on(fleet, overrides=words)
    controller.refresh_overrides()
    words.path.unlink()
    assert handle(controller, command(1))[0].reason == "stopped"


def test_acts_and_words_are_audited(tmp_path: Path) -> None:
    words = OverridesFile(tmp_path / "words.json")
    with Store(tmp_path / "d") as store:
        controller, _ = controller_on(Fleet(), store=store, overrides=words, declared=DECLARED)
        handle(controller, command(1))
        words.change(lambda _: Overrides(pins={"w": Pin(9, None, "ada", "load test")}))
        held = asyncio.run(controller.apply_pin("w"))
        assert asyncio.run(controller.apply_pin("w")) is None, "already there"
    assert held is not None
    lines = [msgspec.json.decode(line) for line in (tmp_path / "d" / "audit.jsonl").read_bytes().splitlines()]
    assert [x.get("reason") for x in lines] == ["applied", None, "pinned"]
    assert lines[1]["words"]["pins"]["w"] == {"replicas": 9, "until_ts_ms": None, "by": "ada", "reason": "load test"}
    assert (lines[2]["before"], lines[2]["after"], lines[2]["why"]) == (5, 9, "pin by ada: load test")


def test_two_processes_do_not_share_a_memory(tmp_path: Path) -> None:
    with Store(tmp_path):
        with pytest.raises(HarmonyError, match="--name") as refused, Store(tmp_path):
            pass
        assert refused.value.exit_code == 2
    with Store(tmp_path):
        pass


@given(st.binary(max_size=60))
@settings(max_examples=60)
def test_a_damaged_memory_is_refused_and_never_read_as_empty(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    store = Store(tmp_path_factory.mktemp("s"))
    write_atomic(store.directory / "guard.json", data)
    with pytest.raises(HarmonyError, match="damaged"):
        store.guard(10, RateCaps(), None)
