"""The simulated fleet as Kafka sees it: it publishes its telemetry, and obeys the commands, slot by slot.

    live a slot ─▶ publish samples ─▶ tick ─▶ wait for the slot's decisions ─▶ obey commands at the slot's end ─▶ next

It waits, so results do not depend on the machine's speed; pacing only makes it watchable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.demo.lockstep import FIRST_ANSWER_S, DecisionFeed, Interrupted, SlotPublisher
from infra.demo.workloads import FleetSpec
from infra.fleet_report import FleetReport, Snapshot
from infra.pace import Pace, check_pace
from infra.simulator.closed_loop import ClosedLoop
from streams.config import StreamConfig
from streams.topics import Topics

__all__ = ["FleetRunner", "Snapshot"]

THIRTY_DAYS_MS = 30 * 86_400_000
# Slots published ahead of their decisions while nothing may act yet.
WARM_UP_AHEAD = 16
# How much of an endless load the static shadow may know.
KNOWN_S = 7_200.0


class FleetRunner:
    """Runs a simulated fleet against the workers of a Kafka cluster.

    Args:
        brokers: `host:port`, several separated by commas; the topics exist.
        policy: must declare the fleet's workloads; its workers run with the same one.
        speed: simulated seconds per second after the warm-up; 0 = as fast as possible.
        duration_s: wall seconds at that speed after the warm-up; None = until the trace ends, or until stopped.
        now_ms: the wall clock at the start of the run; used only when the fleet has no start of its own.
        on_update: called after every slot, in the thread that runs.
        check_alive: called while waiting; may raise to end the run (a worker process died).
        decision_timeout_s: how long one slot may take.
        first_timeout_s: how long the first answer may: workers join their group, restore, and load the model.
        security: keyword arguments of kafka-python's clients.

    Raises:
        HarmonyError: the trace is shorter than the warm-up, or the settings contradict each other (exit code 2).
    """

    def __init__(
        self,
        brokers: str,
        topics: Topics,
        stream: StreamConfig,
        policy: Policy,
        fleet: FleetSpec,
        *,
        speed: float,
        now_ms: int,
        duration_s: float | None = None,
        on_update: Callable[[Snapshot], None] | None = None,
        check_alive: Callable[[], None] | None = None,
        decision_timeout_s: float = 60.0,
        first_timeout_s: float = FIRST_ANSWER_S,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        self._brokers, self._topics, self._stream, self._security = brokers, topics, stream, security
        self._fleet, self._speed, self._timeout_s = fleet, speed, decision_timeout_s
        self._first_timeout_s = first_timeout_s
        self._on_update, self._check_alive = on_update, check_alive
        self._step_s = stream.step_ms / 1000
        self._warm_up_slots = max(stream.context_steps, policy.guards.warm_up_steps)
        _check(fleet, policy, speed, duration_s)
        self._num_slots = self._planned_slots(duration_s)
        start_ts_ms = fleet.start_ts_ms if fleet.start_ts_ms is not None else now_ms - THIRTY_DAYS_MS
        self._start_ts_ms = start_ts_ms - start_ts_ms % stream.step_ms
        score_from_s = self._warm_up_slots * self._step_s
        known_s = KNOWN_S + score_from_s if self._num_slots is None else self._num_slots * self._step_s
        self.loops = tuple(
            ClosedLoop(workload, fleet.seed + k, self._start_ts_ms, self._step_s, score_from_s, known_s)
            for k, workload in enumerate(fleet.workloads)
        )
        self.report = FleetReport(self.loops, fleet.trace, speed, score_from_s)
        self._stop = Event()

    @property
    def num_slots(self) -> int | None:
        """Slots that the run will have, warm-up included; None = endless."""
        return self._num_slots

    @property
    def start_ts_ms(self) -> int:
        """Event time of the run's first instant."""
        return self._start_ts_ms

    def stop(self) -> None:
        """Ask the run to end after what it is doing; callable from a signal handler or another thread."""
        self._stop.set()

    def run(self) -> dict[str, Any]:
        """Run to the end, or until stopped or interrupted; returns `summary()`.

        Raises:
            HarmonyError: the broker or the workers do not answer.
        """
        workloads = [loop.spec.id for loop in self.loops]
        with (
            DecisionFeed(self._brokers, self._topics, workloads, self._security) as feed,
            SlotPublisher(self._brokers, self._topics, self._security) as publisher,
        ):
            try:
                self._run(feed, publisher)
            except (Interrupted, KeyboardInterrupt):
                self._stop.set()
        self._settle()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """What the fleet knows of the run, in the words of `harmony run --json`, and a row per workload."""
        return self.report.summary()

    def _planned_slots(self, duration_s: float | None) -> int | None:
        slots: float = math.inf
        if math.isfinite(self._fleet.end_s):
            slots = math.ceil(self._fleet.end_s / self._step_s)
        if duration_s is not None:
            slots = min(slots, self._warm_up_slots + math.ceil(duration_s * self._speed / self._step_s))
        if slots <= self._warm_up_slots:
            raise HarmonyError(
                f"The load lasts {slots * self._step_s:g} s, but the first {self._warm_up_slots * self._step_s:g} s "
                "only fill the context: use a longer trace or duration, or a shorter context.",
                2,
            )
        return int(slots) if math.isfinite(slots) else None

    def _run(self, feed: DecisionFeed, publisher: SlotPublisher) -> None:
        pace = Pace(self._step_s / self._speed if self._speed > 0 else 0.0)
        while (self._num_slots is None or self.report.slots < self._num_slots) and not self._stop.is_set():
            slot = self.report.slots
            if slot >= self._warm_up_slots and not pace.wait(self._stop):
                return
            origin_ts_ms = self._publish_slot(publisher, slot)
            self._await_answer(feed, slot, origin_ts_ms)
            self.report.decided(feed.inbox.take_arrived())
            if slot + 1 >= self._warm_up_slots:
                self._obey(feed, origin_ts_ms)
            self._tell(feed, slot, origin_ts_ms, pace.behind_s)

    def _publish_slot(self, publisher: SlotPublisher, slot: int) -> int:
        start_s, end_s = slot * self._step_s, (slot + 1) * self._step_s
        origin_ts_ms = self._start_ts_ms + (slot + 1) * self._stream.step_ms
        telemetry = {loop.spec.id: loop.live_slot(start_s, end_s) for loop in self.loops}
        publisher.publish(telemetry, origin_ts_ms + self._stream.grace_ms)
        self.report.lived(end_s, sum(t.num_samples for t in telemetry.values()))
        return origin_ts_ms

    def _await_answer(self, feed: DecisionFeed, slot: int, origin_ts_ms: int) -> None:
        """While the context fills nothing acts and some slots may be under way; from its last slot on, none may."""
        ahead = min(WARM_UP_AHEAD, self._warm_up_slots // 4)
        if slot + 1 >= self._warm_up_slots:
            awaited_ms = origin_ts_ms
        elif slot >= ahead:
            awaited_ms = origin_ts_ms - ahead * self._stream.step_ms
        else:
            feed.poll()
            return
        timeout_s = self._timeout_s if self.report.num_decisions else self._first_timeout_s
        feed.wait(awaited_ms, self._stream.step_ms, timeout_s, self._stop, self._check_alive)

    def _obey(self, feed: DecisionFeed, origin_ts_ms: int) -> None:
        for loop in self.loops:
            decision = feed.inbox.decision(loop.spec.id, origin_ts_ms)
            command = feed.inbox.command(decision) if decision is not None else None
            if command is not None:
                self.report.judged(loop.obey(command, origin_ts_ms))

    def _tell(self, feed: DecisionFeed, slot: int, origin_ts_ms: int, behind_s: float) -> None:
        if self._on_update is None:
            return
        found = {loop.spec.id: feed.inbox.decision(loop.spec.id, origin_ts_ms) for loop in self.loops}
        decisions = {workload: decision for workload, decision in found.items() if decision is not None}
        warm_up = slot + 1 < self._warm_up_slots
        note = f"filling the context of {self._warm_up_slots} slots" if warm_up else ""
        live = self.report.live(origin_ts_ms, decisions, note)
        self._on_update(Snapshot(slot + 1, self._num_slots, origin_ts_ms, warm_up, behind_s, decisions, live))

    def _settle(self) -> None:
        """Let open requests finish, so that the scores count every request that arrived."""
        for loop in self.loops:
            loop.settle(self.report.end_s)
        self.report.final = True


def _check(fleet: FleetSpec, policy: Policy, speed: float, duration_s: float | None) -> None:
    check_pace(speed, duration_s)
    undeclared = [w.spec.id for w in fleet.workloads if policy.spec(w.spec.id) is None]
    if undeclared:
        raise HarmonyError(f"The policy does not declare the fleet's workload {undeclared[0]}: add it.", 2)
