"""The conformance kit on all our actuators, with real HTTP and gRPC under them; and that it finds the unsafe ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agents.actuation.guard import ApplyGuard, Verdict
from infra.actuate.conformance.kit import START_MS, Result
from infra.actuate.conformance.run import run_kit
from infra.actuate.conformance.subjects import ControllerSubject, MemoryWorld, PullWorld, World
from tests.infra.actuate.worlds import KedaWorld, KubernetesWorld, WebhookWorld

WORLDS: dict[str, tuple[Callable[[], World], int, set[str]]] = {
    "core": (MemoryWorld, 40, set()),
    "pull": (PullWorld, 20, {"nobody_elses_change_is_overwritten"}),
    "kubernetes": (KubernetesWorld, 8, set()),
    "webhook": (WebhookWorld, 8, {"nobody_elses_change_is_overwritten"}),
    "keda": (KedaWorld, 4, {"nobody_elses_change_is_overwritten"}),
}


def failures(results: list[Result]) -> dict[str, str]:
    return {r.case: r.detail for r in results if r.outcome == "failed"}


@pytest.mark.parametrize("name", WORLDS)
def test_the_kit_passes(name: str) -> None:
    world, runs, skipped = WORLDS[name]
    results = run_kit(lambda: ControllerSubject(world()), runs=runs, seed=1_000)
    assert failures(results) == {}
    assert {r.case for r in results if r.outcome == "skipped"} == skipped
    assert len(results) >= 27 + runs


def mutant(change: Callable[[ApplyGuard], None]) -> Callable[[], ControllerSubject]:
    """A subject whose guard is broken in one way."""

    class Broken(ControllerSubject):
        def _begin(self) -> None:
            super()._begin()
            change(self.controller.guard)

    return lambda: Broken(MemoryWorld())


def ignores_expiry(guard: ApplyGuard) -> None:
    check = guard.check
    guard.check = lambda command, _now, observed: check(command, START_MS - 1, observed)  # type: ignore[method-assign]


def ignores_order(guard: ApplyGuard) -> None:
    check = guard.check

    def forgetful(command, now_ms, observed):  # type: ignore[no-untyped-def]
        guard._leases.pop(command.workload, None)
        return check(command, now_ms, observed)

    guard.check = forgetful  # type: ignore[method-assign]


def ignores_the_count(guard: ApplyGuard) -> None:
    check = guard.check

    def blind(command, now_ms, observed):  # type: ignore[no-untyped-def]
        verdict = check(command, now_ms, command.expected_current)
        return verdict._replace(apply=True, replicas=command.replicas) if verdict.accepted else verdict

    guard.check = blind  # type: ignore[method-assign]


def forgets_the_caps(guard: ApplyGuard) -> None:
    guard._window.count = lambda *_: None  # type: ignore[method-assign]


def obeys_although_stopped(guard: ApplyGuard) -> None:
    check = guard.check

    def deaf(command, now_ms, observed):  # type: ignore[no-untyped-def]
        verdict = check(command, now_ms, observed)
        if verdict.reason == "stopped" and observed == command.expected_current:
            return Verdict(accepted=True, reason="applied", apply=True, replicas=command.replicas)
        return verdict

    guard.check = deaf  # type: ignore[method-assign]


def answers_for_ever(guard: ApplyGuard) -> None:
    guard.replicas = lambda w, _now: lease.ordered if (lease := guard._leases.get(w)) else None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "found_by"),
    [
        (ignores_expiry, "run_out_is_refused"),
        (ignores_order, "older_sequence_is_refused"),
        (ignores_the_count, "nobody_elses_change_is_overwritten"),
        (forgets_the_caps, "caps_bound_what_is_added"),
        (obeys_although_stopped, "the_kill_switch_stops_everything"),
    ],
)
def test_the_kit_finds_a_broken_guard_by_case_and_by_random_history(
    change: Callable[[ApplyGuard], None], found_by: str
) -> None:
    found = failures(run_kit(mutant(change), runs=10))
    assert found_by in found
    assert any(case.startswith("random_sequence") for case in found), "the laws must see it too"


def test_the_kit_finds_one_who_gives_the_last_value_for_ever() -> None:
    class Broken(ControllerSubject):
        def _begin(self) -> None:
            super()._begin()
            answers_for_ever(self.controller.guard)

    found = failures(run_kit(lambda: Broken(PullWorld()), runs=0))
    wanted = {"a_run_out_lease_leaves_the_count_and_answers_with_an_error", "the_kill_switch_stops_everything"}
    assert wanted <= set(found)


def test_the_kit_finds_one_who_remembers_nothing() -> None:
    class Forgetful(ControllerSubject):
        def restart(self) -> None:
            for file in self._directory.rglob("*.json"):
                file.unlink()
            super().restart()

    found = failures(run_kit(lambda: Forgetful(MemoryWorld()), runs=10))
    assert {
        "a_restart_forgets_no_order",
        "the_kill_switch_outlives_a_restart",
        "caps_bound_what_is_removed_also_over_a_restart",
    } <= set(found)
