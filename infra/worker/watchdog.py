"""Watches one worker from a thread of its own, and ends the process when it has come to a standstill.

The event loop shows what it is doing, twice a second; the thread looks at it, with rules that know no clock. A process
that ends is started again by its supervisor with the state of its logs; one that hangs helps nobody.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Literal, cast

from faust.types.tuples import TP

from infra.observability.health import Health
from infra.settings.limits import WatchdogLimits
from streams.runtime.app import StageHost, descriptor_limit
from streams.runtime.transactions import LogEnd, Place
from streams.runtime.transport import BatchConsumer, producer_failure

# When a worker counts as stuck: pure rules over what it shows of itself, on a clock that is handed in.
#
# Time counts only while the process runs. A laptop that sleeps, a frozen virtual machine or a SIGSTOP shows as a jump
# of the clock between two looks; at most `MOST_PER_LOOK_S` of it is believed, so that nobody is accused of standing
# still while everybody did.


MOST_PER_LOOK_S = 1.0
_LONG_BATCH_S = 2.0
_LOST_S = 5.0  # the log's end is asked for at least twice more: a new leader may be told of it a moment late
_SILENT_S = 3.0  # a broker that has said nothing for so long takes no commit either: that is its own standstill

_EMPTIED = "the topic was emptied or created anew; restore it, or accept a new start with `harmony state reset`"

Phase = Literal["joining", "restoring", "running", "leaving"]


@dataclass(frozen=True, slots=True)
class LaneView:
    """One partition's lane.

    Attributes:
        marks: grows with everything it gets done.
        waits_for: "kernel" while it folds, "kafka" while it waits for an acknowledgement, "" when it is idle.
        lag: records of the log that it has not been given.
        safe: newest offset that may be committed; committed: newest that the group has taken.
        full: its agent waits for room in it.
        num_lost: records that it has been given and that the log does not hold any more, for it ends before them.
    """

    stage: str
    partition: str
    marks: int
    waits_for: str
    lag: int
    safe: int | None = None
    committed: int | None = None
    full: bool = False
    num_lost: int = 0


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What a worker shows of itself at one moment; every counter only grows.

    Attributes:
        loop_turns: rounds of a task on the event loop; 0 = the loop has not begun.
        broker_answers: answers of Kafka to the question where the logs end.
        broker_trouble: what it said last instead of an answer.
        restore_marks: steps of reading state back.
        producer_failure: why nothing can be published any more.
        delivering: partition to which the consumer is handing a batch; "" while it fetches.
    """

    phase: Phase = "joining"
    loop_turns: int = 0
    broker_answers: int = 0
    broker_trouble: str = ""
    restore_marks: int = 0
    producer_failure: str | None = None
    lanes: tuple[LaneView, ...] = ()
    delivering: str = ""


@dataclass(frozen=True, slots=True)
class Stall:
    """A standstill that the process must not survive. `what` is a sentence: what, for how long, what to do."""

    watch: Literal["producer", "event_loop", "shutdown", "broker", "join", "restore", "progress", "commit", "log"]
    seconds: float
    what: str


@dataclass(slots=True)
class _Standstill:
    value: Hashable
    age_s: float = 0.0


@dataclass(slots=True)
class Watch:
    """Remembers since when each thing has stood still; `look` is called about twice a second."""

    limits: WatchdogLimits = field(default_factory=WatchdogLimits)
    _before_s: float | None = None
    _lapse_s: float = 0.0
    _still: dict[Hashable, _Standstill] = field(default_factory=dict)
    _live_keys: set[Hashable] = field(default_factory=set)
    _oldest: dict[str, float] = field(default_factory=dict)

    def look(self, view: WorkerView, now_s: float) -> Stall | None:
        """The first standstill that has lasted too long, the most fundamental one first."""
        elapsed_s = 0.0 if self._before_s is None else max(0.0, now_s - self._before_s)
        self._before_s = now_s
        self._lapse_s = min(elapsed_s, MOST_PER_LOOK_S)
        self._live_keys.clear()
        self._oldest = {}
        stall = self._judge(view)
        for key in self._still.keys() - self._live_keys:
            del self._still[key]
        return stall

    def heartbeat_ages_s(self) -> dict[str, float]:
        """Per stage, and for the worker as a whole, how long work has waited without moving, as of the last look."""
        return dict(self._oldest)

    def _age(self, key: Hashable, value: Hashable, *, counts: bool = True) -> float:
        """How long `key` has had this value, while it counted."""
        self._live_keys.add(key)
        still = self._still.get(key)
        if still is None or still.value != value:
            self._still[key] = _Standstill(value)
            return 0.0
        if counts:
            still.age_s += self._lapse_s
        return still.age_s

    def _judge(self, view: WorkerView) -> Stall | None:
        limits = self.limits
        if view.producer_failure is not None:
            return Stall("producer", 0.0, f"nothing can be published any more ({view.producer_failure})")
        phase_s = self._age("phase", view.phase)
        if view.phase == "leaving":
            if phase_s > limits.stall_s:
                return Stall("shutdown", phase_s, f"it was told to end {phase_s:.0f} s ago and has not; it ends now")
            return None
        turn_s = self._age("loop", view.loop_turns, counts=view.loop_turns > 0)
        self._oldest["worker"] = turn_s
        if turn_s > limits.loop_s:
            # What the loop would have reported is as old as its last turn: nothing below can be judged.
            return Stall("event_loop", turn_s, f"the event loop has not turned for {turn_s:.0f} s")
        if view.phase == "joining":
            if phase_s > limits.join_s:
                return Stall(
                    "join", phase_s,
                    f"Kafka has assigned no partitions for {phase_s:.0f} s; check that the brokers answer, and that no "
                    "other worker has the same instance id",
                )  # fmt: skip
            return None
        if view.phase == "restoring":
            return self._restoring(view, phase_s)
        return self._running(view)

    def _restoring(self, view: WorkerView, phase_s: float) -> Stall | None:
        still_s = self._age("restore", view.restore_marks)
        self._oldest["worker"] = still_s
        if still_s > self.limits.stall_s:
            return Stall(
                "restore", still_s,
                f"restoring the state has read nothing for {still_s:.0f} s; check that the brokers answer",
            )  # fmt: skip
        if phase_s > self.limits.restore_s:
            return Stall(
                "restore", phase_s,
                f"restoring the state has taken {phase_s:.0f} s, the deadline is {self.limits.restore_s:.0f} s; if the "
                "state is that large, raise advanced.watchdogs.restore_s or spread it over more workers",
            )  # fmt: skip
        return None

    def _running(self, view: WorkerView) -> Stall | None:
        limits = self.limits
        broker_s = self._age("broker", view.broker_answers)
        self._oldest["worker"] = max(self._oldest["worker"], broker_s)
        if broker_s > limits.stall_s:
            trouble = f" ({view.broker_trouble})" if view.broker_trouble else ""
            return Stall(
                "broker", broker_s,
                f"Kafka has not answered for {broker_s:.0f} s{trouble}; check the brokers and the way to them",
            )  # fmt: skip
        computing_s = max((self._work_s(lane) for lane in view.lanes if lane.waits_for == "kernel"), default=0.0)
        silent = broker_s > _SILENT_S
        # An agent that waits for room in one lane has a queue of its own before it: the partition whose batch finds no
        # room there either is held up itself.
        full = {lane.partition for lane in view.lanes if lane.full} or {view.delivering} - {""}
        stalls = []
        for lane in sorted(view.lanes, key=lambda lane: not lane.waits_for):
            # Behind a batch that takes long, or a lane that has no room, the others can be given nothing: that is not
            # their standstill. The lane that holds them up is judged by its own work.
            is_blocked = computing_s > _LONG_BATCH_S or bool(full - {lane.partition})
            stalls.append(self._lane(lane, is_blocked, silent))
        standing = [stall for stall in stalls if stall is not None]
        return next((stall for stall in standing if stall.watch == "progress"), standing[0] if standing else None)

    def _work_s(self, lane: LaneView, *, counts: bool = True) -> float:
        works = bool(lane.waits_for) or lane.full or lane.lag > 0
        return self._age((lane.stage, lane.partition, "work"), (lane.marks, works), counts=works and counts)

    def _lane(self, lane: LaneView, is_blocked: bool, silent: bool) -> Stall | None:
        limits, where = self.limits, f"{lane.stage} of {lane.partition}"
        lost_s = self._age((lane.stage, lane.partition, "gone"), lane.num_lost > 0, counts=lane.num_lost > 0)
        if lost_s > _LOST_S:
            return Stall(
                "log",
                lost_s,
                f"{lane.partition} ends {lane.num_lost} records before what {lane.stage} has read of it: {_EMPTIED}",
            )
        computes = lane.waits_for == "kernel"
        busy = bool(lane.waits_for) or lane.full
        still_s = self._age_now(lane) if computes else self._work_s(lane, counts=busy or not is_blocked)
        behind = lane.safe is not None and (lane.committed is None or lane.safe > lane.committed)
        commit_s = self._age(
            (lane.stage, lane.partition, "commit"), (lane.committed, behind), counts=behind and not silent
        )
        self._oldest[lane.stage] = max(self._oldest.get(lane.stage, 0.0), 0.0 if computes else still_s, commit_s)
        if still_s > (limits.forecast_s if computes else limits.stall_s):
            return Stall("progress", still_s, _why_still(lane, where, still_s))
        if commit_s > limits.stall_s:
            since = "none so far" if lane.committed is None else f"the newest is {lane.committed}"
            return Stall(
                "commit",
                commit_s,
                f"{where} has committed nothing for {commit_s:.0f} s although offset {lane.safe} is done ({since}); "
                "Kafka's group coordinator may be out of reach",
            )
        return None

    def _age_now(self, lane: LaneView) -> float:
        return self._still[lane.stage, lane.partition, "work"].age_s


def _why_still(lane: LaneView, where: str, still_s: float) -> str:
    if lane.waits_for == "kafka":
        return (
            f"Kafka has acknowledged nothing of what {where} published for {still_s:.0f} s; check the brokers, their "
            "in-sync replicas and disks"
        )
    if lane.waits_for == "kernel":
        return (
            f"{where} has worked on one batch for {still_s:.0f} s; if fitting and planning take that long here, raise "
            "advanced.watchdogs.forecast_s, else look at the device"
        )
    return f"{where} has been given nothing for {still_s:.0f} s while {lane.lag} records wait; its consumer is stuck"


LOOK_S = 0.5
ASK_S = 2.0
_STARTED_AGAIN = "what was not committed is read again after the restart; docs/operations/watchdogs.md says more"
_DEEPEST_FRAMES = 4


def end_stalled(stall: Stall) -> None:
    """Last line of a life that stands still, then exit code 1."""
    cause = descriptor_limit()
    what = stall.what if cause is None else f"{stall.what}; {cause}"
    sys.stderr.write(f"harmony worker stops (watchdog {stall.watch}): {what}; {_STARTED_AGAIN}\n")
    sys.stderr.flush()
    os._exit(1)


class Watchdog:
    """Shows the worker to `Watch` and to its probes.

    Args:
        host: the worker's stages.
        health: gets a heartbeat per stage, as old as the oldest work that has not moved.
        stages: names of the stages that this worker runs.
        on_stall: must not return in a real worker.

    Attributes:
        ends: of the logs that its lanes read, as of Kafka's last answer.
    """

    def __init__(
        self,
        host: StageHost,
        health: Health,
        stages: tuple[str, ...],
        limits: WatchdogLimits | None = None,
        on_stall: Callable[[Stall], None] = end_stalled,
    ) -> None:
        self._host = host
        self._health = health
        self._stages = stages
        self._watch = Watch(limits or WatchdogLimits())
        self._on_stall = on_stall
        self._view = WorkerView()
        self.ends: dict[Place, LogEnd] = {}
        self._num_lost: dict[TP, int] = {}
        self._answers = 0
        self._trouble = ""
        self._loop_thread: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look, before the event loop begins to turn."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    # On the event loop.

    async def show(self) -> None:
        """Publish what the worker is doing until cancelled, which counts as being told to end."""
        self._loop_thread = threading.get_ident()
        asking = asyncio.create_task(self._ask())
        turns = 0
        try:
            while True:
                turns += 1
                self._view = self._picture(turns)
                await asyncio.sleep(LOOK_S)
        finally:
            asking.cancel()
            self._view = replace(self._view, phase="leaving")

    async def _ask(self) -> None:
        """Ask Kafka where the logs end: what no record says, this answer does."""
        while True:
            await asyncio.sleep(ASK_S)
            if not self._host.status.restored:
                continue
            # Asked for before the answer is: a lane goes on meanwhile, and its log with it.
            given = {TP(*key): lane.next_offset or 0 for key, lane in self._host.status.lanes.items()}
            try:
                self.ends = await self._consumer().log_ends(list(given))
            except Exception as error:  # noqa: BLE001 - whatever it is, it was no answer, and that is what counts
                self._trouble = f"{type(error).__name__}: {error}"
            else:
                self._num_lost = {
                    tp: max(0, read - self.ends[tp].high_watermark) for tp, read in given.items() if tp in self.ends
                }
                self._answers += 1
                self._trouble = ""

    def _consumer(self) -> BatchConsumer:
        return cast("BatchConsumer", self._host.app.consumer)

    def _picture(self, turns: int) -> WorkerView:
        status = self._host.status
        leaving = self._host.app.should_stop
        phase: Phase = (
            "leaving" if leaving else "restoring" if status.restoring else "running" if status.restored else "joining"
        )
        return WorkerView(
            phase=phase,
            loop_turns=turns,
            broker_answers=self._answers,
            broker_trouble=self._trouble,
            restore_marks=status.restore_marks,
            producer_failure=producer_failure(self._host.app),
            lanes=self._lanes() if phase == "running" else (),
            delivering=_place(self._consumer().delivering) if phase == "running" else "",
        )

    def _lanes(self) -> tuple[LaneView, ...]:
        consumer = self._consumer()
        views = []
        for (topic, partition), lane in self._host.status.lanes.items():
            tp = TP(topic, partition)
            end, position = self.ends.get(tp), lane.next_offset
            # What waits for an open transaction may not be read: that is no standstill of the worker.
            lag = consumer.unfetched(tp, end.last_stable) if end is not None else 0
            if position is not None:
                lag += consumer.untaken(tp, position)
            safe, committed = consumer.commit_state(tp)
            num_lost = self._num_lost.get(tp, 0)
            views.append(
                LaneView(lane.stage, _place(tp), lane.marks, lane.waits_for, lag, safe, committed, lane.full, num_lost)
            )
        return tuple(views)

    # On the thread.

    def _look_on(self) -> None:
        while not self._stop.wait(LOOK_S):
            now_s = monotonic()
            stall = self._watch.look(self._view, now_s)
            if stall is not None and not self._stop.is_set():
                self._on_stall(self._located(stall))
                return
            ages = self._watch.heartbeat_ages_s()
            for stage in self._stages:
                self._health.beat(stage, now_s - max(ages.get(stage, 0.0), ages.get("worker", 0.0)))

    def _located(self, stall: Stall) -> Stall:
        frame = sys._current_frames().get(self._loop_thread or 0)  # noqa: SLF001 - the documented way to another thread
        if stall.watch != "event_loop" or frame is None:
            return stall
        deepest = traceback.extract_stack(frame)[-_DEEPEST_FRAMES:]
        where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(deepest))  # noqa: PTH119
        return replace(stall, what=f"{stall.what}, it is in {where}")


def _place(tp: TP | None) -> str:
    return "" if tp is None else f"{tp.topic}/{tp.partition}"
