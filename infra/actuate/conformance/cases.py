"""The named cases of the conformance kit: late, twice, out of order, run out, wrong count, stopped, pinned, capped."""

from __future__ import annotations

from agents.actuation.guard import Overrides, RateCaps
from agents.records import Pin
from infra.actuate.conformance.kit import LEASE_MS, START_MS, Bench, Case

CASES: dict[str, Case] = {}

_HOUR_MS = 3_600_000
_STOPPED = Overrides(stopped="stopped by the kit")


def case(function: Case) -> Case:
    """Add it under its own name."""
    CASES[function.__name__] = function
    return function


def _pinned(replicas: int, until_ts_ms: int | None = START_MS + _HOUR_MS, workload: str = "w") -> Overrides:
    return Overrides(pins={workload: Pin(replicas, until_ts_ms, "kit", "test")})


@case
def obeys_what_is_in_force(b: Bench) -> None:
    b.start()
    b.send(1, 5)
    b.expect(5, "a new command in time")
    b.expect_answer(5, "a lease in force")
    b.send(2, 4, expected=5)
    b.expect(4, "the next command in time")


@case
def twice_is_once(b: Bench) -> None:
    b.start()
    first = b.command(1, 5)
    b.deliver(first, first)
    b.expect(5, "the same command twice")


@case
def older_sequence_is_refused(b: Bench) -> None:
    b.start()
    b.deliver(b.command(7, 6), b.command(6, 2, expected=6))
    b.expect(6, "an older command after a newer one")


@case
def older_sequence_is_refused_although_the_newer_had_run_out(b: Bench) -> None:
    b.start()
    old = b.command(6, 2, expected=6, valid_until_ts_ms=START_MS + 10 * LEASE_MS)
    b.deliver(b.command(7, 6, valid_until_ts_ms=START_MS + 1_000))
    b.later(2_000)
    b.deliver(old)
    b.expect(6, "an older command, still in time, after a newer one that has run out")


@case
def older_epoch_is_refused(b: Bench) -> None:
    b.start()
    b.deliver(b.command(1, 6, epoch=2), b.command(900, 2, expected=6, epoch=1))
    b.expect(6, "a command of an older epoch")


@case
def newer_epoch_begins_its_own_sequence(b: Bench) -> None:
    b.start()
    b.deliver(b.command(900, 6), b.command(1, 4, expected=6, epoch=2))
    b.expect(4, "the first command of a newer epoch")


@case
def epoch_jump_deafens_nobody(b: Bench) -> None:
    b.start()
    b.deliver(b.command(1, 6), b.command(1, 9, expected=6, epoch=2**31), b.command(2, 4, expected=6))
    b.expect(4, "a command after a forged one of a far epoch")


@case
def run_out_is_refused(b: Bench) -> None:
    b.start()
    late, last = b.command(1, 9), b.command(2, 5, valid_until_ts_ms=START_MS + LEASE_MS + 1)
    b.later(LEASE_MS)
    b.deliver(late)
    b.expect(3, "at the moment at which the lease runs out")
    b.deliver(last)
    b.expect(5, "one millisecond before the lease runs out")
    b.later(100 * _HOUR_MS)
    b.deliver(last)
    b.expect(5, "days later")


@case
def a_run_out_lease_leaves_the_count_and_answers_with_an_error(b: Bench) -> None:
    b.start()
    b.expect_answer(None, "before the first command")
    b.send(1, 5)
    b.later(LEASE_MS)
    b.expect_answer(None, "after the lease has run out")
    b.expect(5, "after the lease has run out nothing changes")


@case
def a_renewed_lease_goes_on(b: Bench) -> None:
    b.start()
    b.send(1, 5)
    b.later(LEASE_MS - 1)
    b.send(2, 5, expected=5)
    b.later(LEASE_MS - 1)
    b.expect_answer(5, "a lease that was renewed")


@case
def nobody_elses_change_is_overwritten(b: Bench) -> None:
    b.start("changes")
    b.change(9)
    b.send(1, 5, expected=3)
    b.expect(9, "the target has 9 replicas where the command expects 3")
    b.send(2, 8, expected=9)
    b.expect(8, "the next command knows of the change")


@case
def one_place_in_the_order_has_one_command(b: Bench) -> None:
    b.start()
    b.deliver(b.command(1, 5), b.command(1, 9, expected=5))
    b.expect(5, "a second command with the same epoch and sequence")


@case
def one_id_has_one_count(b: Bench) -> None:
    b.start()
    b.deliver(b.command(1, 5, command_id="x"), b.command(2, 9, expected=5, command_id="x"))
    b.expect(5, "a later command with the same id and another count")


@case
def nonsense_is_refused(b: Bench) -> None:
    b.start()
    b.deliver(
        b.command(10**6, -1),
        b.command(10**6, 10**9),
        b.command(10**6, 5, valid_until_ts_ms=START_MS - 1, issued_ts_ms=START_MS),
    )
    b.expect(3, "negative, absurd, and run out before it was issued")
    b.send(1, 5)
    b.expect(5, "nonsense leaves no trace in the order")


@case
def workloads_do_not_mix(b: Bench) -> None:
    b.start(replicas={"w": 3, "v": 3})
    b.deliver(b.command(9, 5), b.command(1, 4, workload="v"))
    b.expect(5, "of its own command")
    b.expect(4, "of its own command", workload="v")


@case
def a_restart_forgets_no_order(b: Bench) -> None:
    b.start()
    b.send(7, 6)
    b.restart()
    b.deliver(b.command(6, 2, expected=6))
    b.expect(6, "an older command after a restart")
    b.send(8, 6, expected=6)
    b.restart()
    b.deliver(b.command(7, 2, expected=6))
    b.expect(6, "an older command after a restart, the newer one had nothing to change")


@case
def a_command_of_the_future_takes_nothing_away(b: Bench) -> None:
    b.start("clock")
    ahead_ms = START_MS + _HOUR_MS
    b.send(1, 2, issued_ts_ms=ahead_ms, valid_until_ts_ms=ahead_ms + LEASE_MS)
    b.expect(3, "issued an hour ahead of our clock, fewer replicas")
    b.send(2, 5, issued_ts_ms=ahead_ms, valid_until_ts_ms=ahead_ms + LEASE_MS)
    b.expect(5, "issued an hour ahead of our clock, more replicas")


@case
def the_kill_switch_stops_everything(b: Bench) -> None:
    b.start("words")
    b.send(1, 5)
    b.set_overrides(_STOPPED)
    b.send(2, 8, expected=5)
    b.expect(5, "more replicas while stopped")
    b.send(3, 2, expected=5)
    b.expect(5, "fewer replicas while stopped")
    b.expect_answer(None, "while stopped")


@case
def the_kill_switch_outlives_a_restart(b: Bench) -> None:
    b.start("words")
    b.set_overrides(_STOPPED)
    b.restart()
    b.send(1, 5)
    b.expect(3, "restarted while stopped")
    b.set_overrides(Overrides())
    b.send(2, 5)
    b.expect(5, "resumed")


@case
def a_pin_wins_over_commands_until_its_end(b: Bench) -> None:
    b.start("words")
    b.send(1, 5)
    b.set_overrides(_pinned(9))
    b.expect(9, "pinned at 9, without any new command")
    b.send(2, 4, expected=9)
    b.expect(9, "a command while pinned")
    b.expect_answer(9, "while pinned")
    b.later(_HOUR_MS)
    b.send(3, 6, expected=9)
    b.expect(6, "after the pin's end commands count again")


@case
def a_pin_ends_the_lease_before_it(b: Bench) -> None:
    b.start("words")
    b.send(1, 5)
    b.set_overrides(_pinned(9))
    b.set_overrides(Overrides())
    b.expect_answer(None, "unpinned, and no command since")
    b.expect(9, "unpinned, and no command since")


@case
def a_pin_wins_over_the_kill_switch_and_the_caps(b: Bench) -> None:
    b.start("words", "caps", caps=RateCaps(max_added=1, max_removed=1, max_removed_fleet=1))
    b.set_overrides(Overrides(stopped="stopped by the kit", pins=_pinned(9).pins))
    b.expect(9, "pinned at 9 while stopped, one replica a minute allowed")
    b.set_overrides(Overrides(stopped="stopped by the kit", pins=_pinned(1).pins))
    b.expect(1, "pinned at 1 while stopped, one replica a minute allowed")


@case
def a_pin_outlives_a_restart_and_the_lease(b: Bench) -> None:
    b.start("words")
    b.send(1, 5)
    b.set_overrides(_pinned(9))
    b.restart()
    b.later(10 * LEASE_MS)
    b.expect(9, "pinned, restarted, and no lease in force")
    b.expect_answer(9, "pinned, restarted, and no lease in force")


@case
def a_pin_in_the_log_wins(b: Bench) -> None:
    b.start("words", "caps", caps=RateCaps(max_added=1, max_removed=1))
    b.set_overrides(_STOPPED)
    b.send(1, 9, reason="pin")
    b.expect(9, "a pin in the log, while stopped, above the caps")
    if b.can("changes"):
        b.change(4)
        b.send(2, 9, expected=9, reason="pin")
        b.expect(9, "a pin in the log over somebody else's change")


@case
def a_pin_in_the_log_is_a_lease_too(b: Bench) -> None:
    b.start()
    late = b.command(5, 9, reason="pin")
    b.send(6, 5)
    b.deliver(late)
    b.expect(5, "a pin in the log, older than the newest command")
    expired = b.command(7, 9, reason="pin", expected=5)
    b.later(LEASE_MS)
    b.deliver(expired)
    b.expect(5, "a pin in the log that has run out")


@case
def caps_bound_what_is_added(b: Bench) -> None:
    b.start("caps", caps=RateCaps(max_added=2))
    b.send(1, 9)
    b.expect(5, "3 and at most 2 more within a minute")
    b.send(2, 9, expected=5)
    b.expect(5, "nothing more within the same minute")
    b.later(60_000)
    b.send(3, 9, expected=5)
    b.expect(7, "2 more in the next minute")


@case
def caps_bound_what_is_removed_also_over_a_restart(b: Bench) -> None:
    b.start("caps", caps=RateCaps(max_removed=2), replicas={"w": 9})
    b.send(1, 1, expected=9)
    b.expect(7, "9 and at most 2 fewer within a minute")
    b.restart()
    b.send(2, 1, expected=7)
    b.expect(7, "nothing less within the same minute")


@case
def caps_bound_what_the_fleet_loses(b: Bench) -> None:
    b.start("caps", caps=RateCaps(max_removed_fleet=3), replicas={"w": 9, "v": 9})
    b.deliver(b.command(1, 7, expected=9), b.command(1, 5, expected=9, workload="v"))
    b.expect(7, "2 of 3 replicas that the fleet may lose")
    b.expect(8, "1 of 3 replicas that the fleet may lose", workload="v")
