"""The watchdog's rules by a hand clock: what is noticed when, and what is no standstill."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types.tuples import TP
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.observability.health import Health
from infra.settings.limits import WatchdogLimits
from infra.worker import watchdog
from infra.worker.watchdog import LaneView, Stall, Watch, WorkerView
from streams.runtime.transactions import LogEnd

LIMITS = WatchdogLimits()
LOOK_S = 0.5
LANE = LaneView("ingest", "t/0", marks=1, waits_for="", lag=0)
ALIVE = WorkerView(phase="running", loop_turns=1, broker_answers=1)


class Clock:
    """Looks twice a second at a worker whose loop and broker are well, unless told otherwise."""

    def __init__(self, limits: WatchdogLimits = LIMITS) -> None:
        self.watch = Watch(limits)
        self.now_s = 1000.0
        self.turns = 0

    def look(
        self, view: WorkerView, *, loop: bool = True, broker: bool = True, after_s: float = LOOK_S
    ) -> Stall | None:
        self.now_s += after_s
        self.turns += 1
        if loop:
            view = replace(view, loop_turns=view.loop_turns + self.turns)
        if broker:
            view = replace(view, broker_answers=view.broker_answers + self.turns)
        return self.watch.look(view, self.now_s)

    def until(self, view: WorkerView, most_s: float = 1000.0, **well: bool) -> tuple[float, Stall | None]:
        """Seconds that one view may last until there is a verdict."""
        began_s = self.now_s
        while self.now_s - began_s < most_s:
            stall = self.look(view, **well)
            if stall is not None:
                return self.now_s - began_s, stall
        return self.now_s - began_s, None


def running(*lanes: LaneView) -> WorkerView:
    return replace(ALIVE, lanes=lanes)


@pytest.mark.parametrize(
    ("view", "well", "watch", "limit_s"),
    [
        (running(), {"loop": False}, "event_loop", LIMITS.loop_s),
        (running(), {"broker": False}, "broker", LIMITS.stall_s),
        (running(replace(LANE, lag=3)), {}, "progress", LIMITS.stall_s),
        (running(replace(LANE, waits_for="kafka")), {}, "progress", LIMITS.stall_s),
        (running(replace(LANE, waits_for="kernel")), {}, "progress", LIMITS.forecast_s),
        (running(replace(LANE, safe=5, committed=4)), {}, "commit", LIMITS.stall_s),
        (running(replace(LANE, safe=5)), {}, "commit", LIMITS.stall_s),
        (replace(ALIVE, phase="joining"), {}, "join", LIMITS.join_s),
        (replace(ALIVE, phase="restoring"), {}, "restore", LIMITS.stall_s),
        (replace(ALIVE, phase="leaving"), {}, "shutdown", LIMITS.stall_s),
        (replace(ALIVE, phase="joining", loop_turns=0), {"loop": False}, "join", LIMITS.join_s),
    ],
)
def test_each_standstill_is_noticed_at_its_limit(
    view: WorkerView, well: dict[str, bool], watch: str, limit_s: float
) -> None:
    seconds, stall = Clock().until(view, **well)
    assert stall is not None
    assert stall.watch == watch
    assert limit_s < seconds <= limit_s + 2 * LOOK_S
    assert f"{stall.seconds:.0f} s" in stall.what
    if watch not in ("join", "progress") or limit_s == LIMITS.stall_s:
        assert seconds < 30


def test_a_log_that_ends_before_what_was_read_of_it_is_noticed_though_nothing_waits() -> None:
    clock = Clock()
    for _ in range(50):  # an answer that came a moment late, again and again
        assert clock.until(running(replace(LANE, num_lost=2)), 4.0)[1] is None
        assert clock.look(running(LANE)) is None
    stall = clock.until(running(replace(LANE, num_lost=2)))[1]
    assert stall is not None
    assert stall.watch == "log"
    assert "t/0 ends 2 records before what ingest has read of it" in stall.what
    assert "harmony state reset" in stall.what


@pytest.mark.parametrize(("end", "gone"), [(10, 0), (7, 3), (12, 0)])
async def test_the_end_of_a_log_is_held_against_what_had_been_read_when_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, end: int, gone: int
) -> None:
    monkeypatch.setattr(watchdog, "ASK_S", 0.0)
    lane = SimpleNamespace(stage="ingest", marks=1, waits_for="", full=False, next_offset=10)

    async def log_ends(tps: list[TP]) -> dict[TP, LogEnd]:
        if lane.next_offset > 10:
            raise asyncio.CancelledError
        lane.next_offset += 5  # it goes on while the broker answers
        return dict.fromkeys(tps, LogEnd(0, end))  # an open transaction takes nothing from the log

    consumer = SimpleNamespace(
        log_ends=log_ends, unfetched=lambda *_: 0, untaken=lambda *_: 0, commit_state=lambda _: (None, None)
    )
    status = SimpleNamespace(restored=True, lanes={("t", 0): lane})
    host: Any = SimpleNamespace(status=status, app=SimpleNamespace(consumer=consumer))
    dog = watchdog.Watchdog(host, Health(0.0), ("ingest",))
    with pytest.raises(asyncio.CancelledError):
        await dog._ask()
    assert dog._lanes()[0].num_lost == gone


@pytest.mark.parametrize(("end", "lag"), [(LogEnd(10, 90), 0), (LogEnd(40, 90), 30), (LogEnd(90, 90), 80)])
def test_records_that_wait_for_a_transaction_are_no_work_that_stands_still(end: LogEnd, lag: int) -> None:
    lane = SimpleNamespace(stage="ingest", marks=1, waits_for="", full=False, next_offset=10)
    consumer = SimpleNamespace(
        unfetched=lambda _, end: end - 10, untaken=lambda *_: 0, commit_state=lambda _: (None, None)
    )
    status = SimpleNamespace(restored=True, lanes={("t", 0): lane})
    host: Any = SimpleNamespace(status=status, app=SimpleNamespace(consumer=consumer))
    dog = watchdog.Watchdog(host, Health(0.0), ("ingest",))
    dog.ends = {("t", 0): end}
    (view,) = dog._lanes()
    assert view.lag == lag
    assert (Clock().until(running(view))[1] is None) == (lag == 0)


def test_behind_a_lane_without_room_nobody_else_stands_still() -> None:
    hungry, busy = replace(LANE, stage="forecast", partition="pages/1", lag=70), replace(LANE, waits_for="kernel")
    clock = Clock()
    for turn in range(200):  # an overloaded worker: the busy lane gets one small batch done after the other
        view = replace(running(hungry, replace(busy, marks=turn)), delivering=busy.partition)
        assert clock.look(view) is None
    # One that is handed its batch and does not take it is judged, and so is one that nobody hands anything.
    assert Clock().until(replace(running(hungry), delivering="pages/1"))[1] is not None
    assert Clock().until(running(hungry))[1] is not None


def test_behind_an_agent_that_waits_for_room_nobody_else_stands_still() -> None:
    hungry = replace(LANE, stage="forecast", partition="pages/1", lag=70)
    busy = replace(LANE, stage="forecast", partition="pages/0", waits_for="kernel", full=True)
    clock = Clock()
    for turn in range(200):  # the consumer has the hungry lane's batch in hand, and the agent the busy one's
        assert clock.look(replace(running(hungry, replace(busy, marks=turn)), delivering=hungry.partition)) is None
    for idle in ("", "kafka"):
        stuck = replace(running(hungry, replace(busy, waits_for=idle)), delivering=hungry.partition)
        stall = Clock().until(stuck)[1]
        assert stall is not None
        assert busy.partition in stall.what


def test_a_broker_that_is_away_is_blamed_itself_and_not_the_commits_it_cannot_take() -> None:
    clock, behind = Clock(), running(replace(LANE, safe=5))
    # Most of the limit without it, then as much with it: the commits had half a chance.
    assert clock.until(behind, LIMITS.stall_s - 5, broker=False)[1] is None
    assert clock.until(behind, LIMITS.stall_s - 5)[1] is None
    clock, behind = Clock(), running(replace(LANE, safe=5, committed=4))
    assert clock.until(behind, 2.0)[1] is None
    seconds, stall = clock.until(behind, broker=False)
    assert stall is not None
    assert stall.watch == "broker"
    assert seconds <= LIMITS.stall_s + 2 * LOOK_S


def test_a_failed_producer_is_noticed_at_the_first_look() -> None:
    stall = Clock().look(replace(ALIVE, producer_failure="fenced"))
    assert stall is not None
    assert stall.watch == "producer"
    assert "fenced" in stall.what


def test_restoring_that_moves_meets_its_own_deadline() -> None:
    clock, marks, stall = Clock(), 0, None
    while stall is None:
        marks += 1
        stall = clock.look(replace(ALIVE, phase="restoring", restore_marks=marks))
    assert marks * LOOK_S == pytest.approx(LIMITS.restore_s, abs=2 * LOOK_S)
    assert "restore_s" in stall.what


def test_an_idle_worker_lives_for_ever() -> None:
    idle = running(LANE, replace(LANE, stage="decide", safe=9, committed=9))
    assert Clock().until(idle, 3_600)[1] is None
    ahead = running(replace(LANE, safe=3, committed=9))
    assert Clock().until(ahead, 3_600)[1] is None, "another life committed further than this one needs"


def test_a_worker_without_partitions_is_no_standstill() -> None:
    assert Clock().until(running(), 3_600)[1] is None


@pytest.mark.parametrize("view", [running(replace(LANE, lag=3)), replace(ALIVE, phase="restoring")])
def test_a_pause_of_the_whole_process_is_no_standstill(view: WorkerView) -> None:
    clock = Clock()
    for _ in range(20):
        assert clock.look(view, after_s=3_600) is None, "of an hour asleep one second counts"
    seconds, stall = clock.until(view)
    assert stall is not None
    assert seconds == pytest.approx(LIMITS.stall_s - 19, abs=2 * LOOK_S)


def test_a_clock_that_goes_back_counts_nothing() -> None:
    clock = Clock()
    for _ in range(100):
        assert clock.look(running(replace(LANE, lag=1)), after_s=-5) is None


def test_a_broker_that_pauses_15_s_is_waited_for() -> None:
    clock, busy = Clock(), running(replace(LANE, waits_for="kafka"))
    for n in range(20):
        assert clock.until(busy, 15, broker=False)[1] is None
        busy = running(replace(LANE, waits_for="kafka", marks=2 + n))
        assert clock.look(busy) is None


def test_whoever_queues_behind_a_long_fit_is_not_to_blame() -> None:
    fit = replace(LANE, stage="forecast", waits_for="kernel")
    behind = replace(LANE, lag=500)
    clock = Clock()
    assert clock.until(running(fit, behind), 115)[1] is None
    assert clock.until(running(replace(fit, marks=2, waits_for=""), behind), 15)[1] is None, "its turn comes now"
    seconds, stall = Clock().until(running(fit, behind))
    assert stall is not None
    assert stall.what.startswith("forecast of t/0 has worked on one batch")
    assert seconds > LIMITS.forecast_s


def test_a_busy_forecaster_does_not_hide_a_stuck_consumer() -> None:
    clock, stall, n = Clock(), None, 0
    while stall is None and n < 100:
        n += 1
        busy = replace(LANE, stage="forecast", waits_for="kernel", marks=n // 3)
        stall = clock.look(running(busy, replace(LANE, lag=7)))
    assert stall is not None
    assert "7 records wait" in stall.what
    assert n * LOOK_S < 30


def test_the_one_that_waits_for_kafka_is_named_before_the_ones_behind_it() -> None:
    waiting = [replace(LANE, partition=f"t/{n}", lag=9, safe=2, committed=1) for n in range(3)]
    _, stall = Clock().until(running(*waiting, replace(LANE, stage="decide", partition="p/0", waits_for="kafka")))
    assert stall is not None
    assert "what decide of p/0 published" in stall.what


def test_heartbeats_are_as_old_as_the_work_that_waits() -> None:
    clock = Clock()
    view = running(replace(LANE, lag=1), replace(LANE, stage="decide"))
    assert clock.until(view, 10)[1] is None
    ages = clock.watch.heartbeat_ages_s()
    assert ages["ingest"] == pytest.approx(10, abs=LOOK_S)
    assert ages["decide"] == 0.0
    assert ages["worker"] == 0.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["", "kernel", "kafka"]), st.integers(0, 5)), max_size=200))
def test_whoever_moves_often_enough_is_never_ended(history: list[tuple[bool, str, int]]) -> None:
    """Law: marks that grow at least every `stall_s` of work are never a standstill, whatever else happens."""
    clock, marks, still_s = Clock(), 0, 0.0
    for moves, waits_for, lag in history:
        for _ in range(8):
            still_s += LOOK_S
            if moves or still_s > LIMITS.stall_s - 2:
                marks, still_s = marks + 1, 0.0
            lane = replace(LANE, marks=marks, waits_for=waits_for, lag=lag)
            assert clock.look(running(lane)) is None


def test_a_stalled_view_ends_the_process_from_the_thread_and_names_the_place() -> None:
    from infra.worker.watchdog import Watchdog

    class App:
        should_stop = False
        _producer = None

    class Host:
        app = App()
        from streams.runtime.app import HostStatus

        status = HostStatus()

    from infra.observability.health import Health

    stalls: list[Stall] = []
    limits = replace(LIMITS, loop_s=1.0)
    watchdog = Watchdog(Host(), Health(0.0), ("ingest",), limits, stalls.append)  # type: ignore[arg-type]
    watchdog.start()

    async def block() -> None:
        showing = asyncio.create_task(watchdog.show())
        await asyncio.sleep(0)
        watchdog._thread.join(10)  # the loop does not turn while this waits
        showing.cancel()

    asyncio.run(block())
    watchdog.stop()
    assert [s.watch for s in stalls] == ["event_loop"]
    assert "test_watchdog.py" in stalls[0].what
