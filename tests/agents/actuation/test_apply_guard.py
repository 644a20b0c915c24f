"""The apply-time guard: in whatever order commands come, the newest wins, and nobody else's change is overwritten."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.actuation.guard import ApplyGuard, ChangeWindow, Overrides, RateCaps, Verdict
from agents.records import Command, Pin, Target

NOW = 1_000
CAPS = RateCaps(max_added=4, max_removed=2, max_removed_fleet=3)


def applied(replicas: int) -> Verdict:
    return Verdict(accepted=True, reason="applied", apply=True, replicas=replicas)


TARGET = Target("apps/v1", "Deployment", "prod", "w")


def command(sequence: int, replicas: int = 5, expected: int = 3, **changes: object) -> Command:
    plain = Command(
        command_id=f"c{replicas}",
        decision_id=f"d{sequence}",
        workload="w",
        target=TARGET,
        replicas=replicas,
        expected_current=expected,
        epoch=1,
        sequence=sequence,
        issued_ts_ms=0,
        valid_until_ts_ms=10_000,
        reason="chance",
        p_miss=0.001,
        epsilon=0.01,
    )
    return msgspec.structs.replace(plain, **changes)


def test_a_new_command_is_applied_once_and_then_renewed() -> None:
    guard = ApplyGuard()
    assert guard.check(command(1), NOW, 3) == applied(5)
    assert guard.check(command(1), NOW, 5) == Verdict(accepted=True, reason="renewed")
    assert guard.check(command(2, expected=5, valid_until_ts_ms=20_000), NOW, 5) == Verdict(
        accepted=True, reason="renewed"
    )
    assert guard.replicas("w", 19_999) == 5


def test_what_is_already_there_is_a_lease_but_not_applied() -> None:
    assert ApplyGuard().check(command(1), NOW, 5) == Verdict(accepted=True, reason="already_there")


def test_a_lost_change_is_applied_again_when_the_renewal_has_seen_it() -> None:
    """Someone set 3 again after us; a renewal that expects 3 wants 5 back, one that still expects 5 does not know."""
    guard = ApplyGuard()
    guard.check(command(1), NOW, 3)
    assert guard.check(command(2, expected=3), NOW, 3) == applied(5)
    assert guard.check(command(3, expected=5), NOW, 4) == Verdict(accepted=False, reason="changed_by_others")


@pytest.mark.parametrize(("now", "wanted"), [(9_999, "applied"), (10_000, "expired"), (10**12, "expired")])
def test_expiry_is_judged_at_apply_time(now: int, wanted: str) -> None:
    assert ApplyGuard().check(command(1), now, 3).reason == wanted


def test_an_undeclared_epoch_moves_by_one() -> None:
    guard = ApplyGuard()
    assert guard.max_epoch is None
    # A new actuator joins a fleet of any age.
    assert guard.check(command(7, epoch=4), NOW, 3).accepted
    before = guard.snapshot_bytes()
    for forged in (6, 2**31, 2**62):
        assert guard.check(command(1, 9, 5, epoch=forged), NOW, 5) == Verdict(accepted=False, reason="epoch_jump")
        # Of another workload, too: the epoch is the fleet's.
        assert guard.check(command(1, 9, 5, epoch=forged, workload="v"), NOW, 5).reason == "epoch_jump"
    assert guard.snapshot_bytes() == before
    assert guard.check(command(8, expected=5, epoch=4), NOW, 5).reason == "renewed"
    assert guard.check(command(1, 6, 5, epoch=5), NOW, 5) == applied(6)
    assert guard.check(command(9, 5, 6, epoch=4), NOW, 6).reason == "superseded"


def test_an_epoch_above_the_declared_one_is_refused() -> None:
    guard = ApplyGuard(epoch=1)
    for sequence in (7, 8):  # before the first command, too
        before = guard.snapshot_bytes()
        for forged in (2, 3, 2**31, 2**62):
            for workload in ("w", "v"):
                attempt = command(1, 9, 5, epoch=forged, workload=workload)
                assert guard.check(attempt, NOW, 5) == Verdict(accepted=False, reason="epoch_jump")
        assert guard.snapshot_bytes() == before
        assert guard.check(command(sequence), NOW, 5).accepted
    # The control arm: an epoch that commands may raise makes all that follow older ones.
    deaf = ApplyGuard()
    assert deaf.check(command(7), NOW, 3).accepted
    assert deaf.check(command(1, 9, 5, epoch=2), NOW, 5).accepted
    assert deaf.check(command(8, 5, 9), NOW, 9).reason == "superseded"


def test_a_declared_epoch_is_taken_however_far() -> None:
    told = ApplyGuard(epoch=1)
    told.check(command(7), NOW, 3)
    later = ApplyGuard.restore(told.snapshot_bytes(), epoch=9)
    assert later.check(command(1, 6, 5, epoch=10), NOW, 5).reason == "epoch_jump"
    assert later.check(command(1, 6, 5, epoch=9), NOW, 5) == applied(6)
    assert later.check(command(8, 5, 6), NOW, 6).reason == "superseded"


HOUR_MS, STEP_MS, AHEAD_MS = 3_600_000, 5_000, 60_000


def live(step: int, replicas: int = 5, expected: int = 3, **changes: object) -> Command:
    """A command as the decide stage writes it: its sequence is the number of its step in Unix time."""
    issued_ms = step * STEP_MS
    return command(step, replicas, expected, issued_ts_ms=issued_ms, valid_until_ts_ms=issued_ms + HOUR_MS, **changes)


def clocked(**options: object) -> ApplyGuard:
    return ApplyGuard(max_ahead_ms=AHEAD_MS, step_ms=STEP_MS, **options)  # type: ignore[arg-type]


def test_a_sequence_is_not_ahead_of_time() -> None:
    guard, step = clocked(), 350_000_000
    assert guard.check(live(step), step * STEP_MS, 3).accepted
    before = guard.snapshot_bytes()
    for forged in (step + 1 + AHEAD_MS // STEP_MS, 2 * step, 2**62):
        for workload in ("w", "v"):
            attempt = command(forged, 9, 5, issued_ts_ms=0, valid_until_ts_ms=2**62, workload=workload)
            assert guard.check(attempt, step * STEP_MS, 5) == Verdict(accepted=False, reason="sequence_jump")
    assert guard.snapshot_bytes() == before
    assert guard.check(live(step + 1, 6, 5), (step + 1) * STEP_MS, 5) == applied(6)
    # After an outage of a month the next command is just as far ahead as the clock.
    late = step + 30 * 24 * HOUR_MS // STEP_MS
    assert guard.check(live(late, 7, 6), late * STEP_MS, 6) == applied(7)
    # A clock that is set back refuses until it is right again.
    assert guard.check(live(late + 1, 8, 7), (late + 1) * STEP_MS - HOUR_MS, 7).reason == "sequence_jump"
    assert guard.check(live(late + 1, 8, 7), (late + 1) * STEP_MS, 7) == applied(8)
    # The control arm: without the step, one forged sequence makes every later command an older one.
    deaf = ApplyGuard(max_ahead_ms=AHEAD_MS)
    assert deaf.check(live(step), step * STEP_MS, 3).accepted
    deaf.check(command(2**62, 9, 5, issued_ts_ms=0, valid_until_ts_ms=2**62), step * STEP_MS, 5)
    assert deaf.check(live(late, 7, 6), late * STEP_MS, 6).reason == "superseded"


@given(st.lists(st.integers(0, 2**40), max_size=20), st.integers(1, 500))
def test_forged_sequences_deafen_for_a_minute_at_most(forged: list[int], later: int) -> None:
    guard, step = clocked(), 350_000_000
    guard.check(live(step), step * STEP_MS, 3)
    for ahead in forged:
        guard.check(command(step + ahead, 5, 5, valid_until_ts_ms=2**62), step * STEP_MS, 5)
        guard = ApplyGuard.restore(guard.snapshot_bytes(), max_ahead_ms=AHEAD_MS, step_ms=STEP_MS)
    after = step + AHEAD_MS // STEP_MS + later
    assert guard.check(live(after, 7, 5), after * STEP_MS, 5).accepted


@pytest.mark.parametrize("behind_ms", [0, 10 * 60_000, 24 * HOUR_MS])
def test_a_clock_that_is_behind_refuses_no_sequence(behind_ms: int) -> None:
    guard, step, observed = clocked(), 350_000_000, 3
    for n in range(0, 2_000, 250):  # with gaps of twenty minutes, and a restart in each
        told = guard.check(live(step + n, 4 + n // 250, observed), (step + n) * STEP_MS - behind_ms, observed)
        assert told == applied(4 + n // 250)
        observed = 4 + n // 250
        guard = ApplyGuard.restore(guard.snapshot_bytes(), max_ahead_ms=AHEAD_MS, step_ms=STEP_MS)


def test_replicas_run_out_with_the_lease() -> None:
    guard = ApplyGuard()
    assert guard.replicas("w", NOW) is None
    guard.check(command(1), NOW, 3)
    assert (guard.replicas("w", 9_999), guard.replicas("w", 10_000)) == (5, None)


def test_a_delayed_older_command_is_refused_even_after_a_newer_one_was_not_carried_out() -> None:
    guard = ApplyGuard()
    assert guard.check(command(7, replicas=9, expected=8), NOW, 3).reason == "changed_by_others"
    assert guard.check(command(6), NOW, 3) == Verdict(accepted=False, reason="superseded")


def test_a_higher_epoch_restarts_the_sequence_and_a_lower_one_never_returns() -> None:
    guard = ApplyGuard()
    guard.check(command(900), NOW, 3)
    assert guard.check(command(1, replicas=6, expected=5, epoch=2), NOW, 5).accepted
    assert guard.check(command(901, replicas=4, expected=6), NOW, 6) == Verdict(accepted=False, reason="superseded")


def test_the_first_of_two_bodies_with_one_sequence_stands() -> None:
    guard = ApplyGuard()
    guard.check(command(1), NOW, 3)
    assert guard.check(command(1, replicas=9), NOW, 3) == Verdict(accepted=False, reason="conflict")


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": -1},
        {"replicas": True},
        {"replicas": 5.0},
        {"replicas": 1_001},
        {"expected_current": -1},
        {"sequence": -1},
        {"epoch": -1},
        {"valid_until_ts_ms": 0},
    ],
)
def test_an_insane_command_is_refused_and_leaves_no_trace(changes: dict[str, object]) -> None:
    guard = ApplyGuard(max_replicas=1_000)
    assert guard.check(msgspec.structs.replace(command(5), **changes), NOW, 3) == Verdict(
        accepted=False, reason="not_sane"
    )
    assert guard.leases == {}


def test_our_own_earlier_order_counts_as_expected() -> None:
    """Facts lag: the next command still expects the count from before our last one."""
    guard = ApplyGuard()
    guard.check(command(1, replicas=5, expected=3), NOW, 3)
    assert guard.check(command(2, replicas=8, expected=3), NOW, 5) == applied(8)


def test_workloads_do_not_mix() -> None:
    guard = ApplyGuard()
    guard.check(command(9), NOW, 3)
    assert guard.check(command(1, workload="v"), NOW, 3).accepted


orders = st.lists(st.integers(0, 6), min_size=1, max_size=8).flatmap(
    lambda replicas: st.tuples(
        st.just(replicas),
        st.lists(st.integers(0, len(replicas) - 1), max_size=12).map(lambda more: [*range(len(replicas)), *more]),
    ).flatmap(lambda t: st.tuples(st.just(t[0]), st.permutations(t[1]), st.integers(0, 20)))
)


@given(orders)
def test_any_order_with_repeats_and_restarts_ends_in_the_newest_count(case: tuple[list[int], list[int], int]) -> None:
    replicas, order, restart = case
    commands, ident = [], 0
    for i, n in enumerate(replicas):
        ident += i > 0 and n != replicas[i - 1]
        commands.append(command(i, replicas=n, command_id=f"c{ident}"))
    guard, current, highest = ApplyGuard(), 3, -1
    for step, i in enumerate(order):
        if step == restart:
            guard = ApplyGuard.restore(guard.snapshot_bytes())
        # The observed count matches what the command expects; what others did in between is another test's matter.
        verdict = guard.check(msgspec.structs.replace(commands[i], expected_current=current), NOW, current)
        assert verdict.accepted == (i >= highest)
        highest = max(highest, i)
        if verdict.apply:
            current = commands[i].replicas
        assert current == replicas[highest]
    assert guard.replicas("w", NOW) == replicas[-1] == current


def test_a_foreign_snapshot_is_an_error() -> None:
    with pytest.raises(msgspec.MsgspecError):
        ApplyGuard.restore(b'{"w":{"epoch":"x"}}')


def test_ahead_of_our_clock_a_command_takes_nothing_away() -> None:
    guard = ApplyGuard(max_ahead_ms=60_000)
    ahead = {"issued_ts_ms": NOW + 60_001, "valid_until_ts_ms": NOW + 200_000}
    assert guard.check(command(1, replicas=2, **ahead), NOW, 3) == Verdict(accepted=False, reason="ahead")
    assert guard.check(command(2, replicas=2, **{**ahead, "issued_ts_ms": NOW + 60_000}), NOW, 3) == applied(2)
    assert guard.check(command(3, replicas=6, expected=2, **ahead), NOW, 2) == applied(6)


def test_a_pin_ends_the_lease_from_before_it() -> None:
    guard = ApplyGuard()
    guard.check(command(1), NOW, 3)
    guard.set_overrides(Overrides(pins={"w": Pin(9, NOW + 10)}), NOW)
    assert guard.replicas("w", NOW) == 9
    assert guard.hold("w", NOW, 5) == Verdict(accepted=False, reason="pinned", apply=True, replicas=9)
    assert guard.check(command(2), NOW, 9) == Verdict(accepted=False, reason="pinned")
    assert guard.replicas("w", NOW + 10) is None, "over, and no command since"
    assert guard.hold("w", NOW + 10, 5) is None
    assert guard.check(command(1), NOW + 10, 9).reason == "superseded"


def test_words_and_rate_windows_are_part_of_the_snapshot() -> None:
    guard = ApplyGuard(caps=CAPS)
    guard.check(command(1, replicas=1, expected=9), NOW, 9)
    guard.set_overrides(Overrides(stopped="ada", pins={"v": Pin(2)}), NOW)
    again = ApplyGuard.restore(guard.snapshot_bytes(), caps=CAPS)
    assert again.overrides == guard.overrides
    assert again.leases == guard.leases
    assert again.check(command(2, replicas=1, expected=7), NOW, 7).reason == "stopped"
    again.set_overrides(Overrides(), NOW)
    assert again.check(command(3, replicas=1, expected=7), NOW, 7) == Verdict(accepted=True, reason="limited")


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from("wv"), st.integers(-9, 9)), max_size=30))
def test_no_window_of_a_minute_holds_more_than_the_caps(moves: list[tuple[int, str, int]]) -> None:
    """Against the plain sum over every window of the allowed changes."""
    window, now_ms = ChangeWindow(CAPS), 0
    made: list[tuple[int, str, int]] = []
    for wait_ms, workload, delta in moves:
        now_ms += wait_ms
        allowed = window.allowed(workload, delta, now_ms)
        assert 0 <= allowed * (1 if delta >= 0 else -1) <= abs(delta), "a part of what is asked for"
        if allowed:
            window.count(workload, allowed, now_ms)
            made.append((now_ms, workload, allowed))
    for end_ms, _, _ in made:
        inside = [m for m in made if end_ms - CAPS.period_ms < m[0] <= end_ms]
        for workload in "wv":
            assert sum(n for _, w, n in inside if w == workload and n > 0) <= 4
            assert -sum(n for _, w, n in inside if w == workload and n < 0) <= 2
        assert -sum(n for _, _, n in inside if n < 0) <= 3


def test_what_was_surely_not_made_frees_its_cap_and_a_clock_set_back_frees_nothing() -> None:
    window = ChangeWindow(CAPS)
    window.count("w", -2, NOW)
    assert window.allowed("w", -1, NOW - 500_000) == 0
    window.forget("w")
    assert window.allowed("w", -1, NOW) == -1
