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
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import cast

from faust.types.tuples import TP

from infra.observability.health import Health
from infra.watchdog_rules import LaneView, Phase, Stall, Watch, WatchdogLimits, WorkerView
from streams.runtime.app import StageHost, exhausted
from streams.runtime.transport import BatchConsumer, producer_failure

LOOK_S = 0.5
ASK_S = 2.0
_STARTED_AGAIN = "what was not committed is read again after the restart; docs/operations/watchdogs.md says more"
_DEEPEST_FRAMES = 4


def end_stalled(stall: Stall) -> None:
    """Last line of a life that stands still, then exit code 1."""
    cause = exhausted()
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
        self._ends: dict[TP, int] = {}
        self._gone: dict[TP, int] = {}
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
                self._ends = await self._consumer().log_ends(list(given))
            except Exception as error:  # noqa: BLE001 - whatever it is, it was no answer, and that is what counts
                self._trouble = f"{type(error).__name__}: {error}"
            else:
                self._gone = {tp: max(0, read - self._ends.get(tp, read)) for tp, read in given.items()}
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
            end, position = self._ends.get(tp), lane.next_offset
            lag = consumer.unfetched(tp, end) if end is not None else 0
            if position is not None:
                lag += consumer.untaken(tp, position)
            safe, committed = consumer.commit_state(tp)
            gone = self._gone.get(tp, 0)
            views.append(
                LaneView(lane.stage, _place(tp), lane.marks, lane.waits_for, lag, safe, committed, lane.full, gone)
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
