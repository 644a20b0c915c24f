"""The simulated fleet as Kafka sees it: it publishes its telemetry, and obeys the commands, slot by slot.

    live a slot ─▶ publish samples ─▶ tick ─▶ wait for the slot's decisions ─▶ obey commands at the slot's end ─▶ next

It waits, so results do not depend on the machine's speed; pacing only makes it watchable.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, NamedTuple

from agents.actuation.guard import Verdict
from agents.policy import Policy
from agents.records import Decision
from infra.console.errors import HarmonyError
from infra.demo.live import LiveRow, LiveState
from infra.demo.lockstep import (
    FIRST_ANSWER_S,
    DecisionFeed,
    DecisionTally,
    Interrupted,
    Pace,
    SlotPublisher,
    check_pace,
)
from infra.demo.workloads import FleetSpec
from infra.page.live import PolicyLine
from infra.simulator.closed_loop import ClosedLoop
from infra.simulator.ledger import Scoreboard
from infra.simulator.shadows import ShadowScore
from streams.catalogue import ARRIVAL_RATE
from streams.config import StreamConfig
from streams.topics import Topics

__all__ = ["FleetRunner", "Snapshot"]


# Report of a run: the rows of the live view, the totals and the summary.


SPARKLINE_SLOTS = 60
# Kept for the report: a day and a half in steps of 5 s.
_SERIES_SLOTS = 26_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run after one slot.

    Attributes:
        slot, num_slots: of this run, from 1; `num_slots` None for an endless run.
        origin_ts_ms: event time of the slot's end.
        warm_up: the context is still filling: nothing acts, nothing is scored.
        behind_s: wall seconds that the run lags its pace.
        decisions: one per workload where the slot has one.
        live: the view's state; its rate and lag belong to others.
    """

    slot: int
    num_slots: int | None
    origin_ts_ms: int
    warm_up: bool
    behind_s: float
    decisions: Mapping[str, Decision]
    live: LiveState


class SeriesRow(NamedTuple):
    """One workload at the end of a slot.

    Attributes:
        at_s: simulated seconds since the context was full.
        held: ready and pending replicas by policy, this run's own as `harmony`.
        peak_rps: low, median and high of the demand forecast over the window that a new replica would serve in; None:
            none was made.
        window_s: how far ahead of `at_s` that window ends.
    """

    at_s: float
    load_rps: float
    held: Mapping[str, int]
    peak_rps: tuple[float, float, float] | None = None
    window_s: float = 0.0


class FleetReport:
    """Counts a run and scores it.

    Args:
        score_from_s: start of the scored interval.

    Attributes:
        end_s: simulated time lived so far.
        final: every open request has had its time to finish, so what has not is a miss.
    """

    def __init__(self, loops: tuple[ClosedLoop, ...], trace: str | None, speed: float, score_from_s: float) -> None:
        self._loops = loops
        self._trace, self._speed, self._score_from_s = trace, speed, score_from_s
        self.end_s = 0.0
        self.final = False
        self.slots = self.samples = self.applied = 0
        self._rates: dict[str, deque[float]] = {loop.spec.id: deque(maxlen=SPARKLINE_SLOTS) for loop in loops}
        self._tally = DecisionTally()
        self._refused: Counter[str] = Counter()
        self.series: dict[str, deque[SeriesRow]] = {loop.spec.id: deque(maxlen=_SERIES_SLOTS) for loop in loops}

    @property
    def num_decisions(self) -> int:
        return self._tally.total

    def record_slot(self, end_s: float, num_samples: int) -> None:
        """One slot has been lived and published."""
        self.slots += 1
        self.end_s = end_s
        self.samples += num_samples
        for loop in self._loops:
            self._rates[loop.spec.id].append(loop.load().arrival_rps)

    def decided(self, decisions: Iterable[Decision]) -> None:
        """Decisions have been read, each given once."""
        self._tally.add(decisions)

    def observe(self, decisions: Mapping[str, Decision]) -> None:
        """Keep the slot for the report; `decisions` are its own."""
        if self.end_s < self._score_from_s:
            return
        for loop in self._loops:
            held = {"harmony": loop.cluster.num_current}
            held |= {shadow.policy: shadow.cluster.num_current for shadow in loop.shadows}
            row = SeriesRow(self.end_s - self._score_from_s, loop.load().arrival_rps, held)
            decision = decisions.get(loop.spec.id)
            if decision is not None and decision.forecast.indicator == ARRIVAL_RATE and decision.forecast.peak:
                q = decision.forecast.peak
                low, mid, high = (q.values[_nearest(q.levels, level)] for level in (0.1, 0.5, 0.9))
                row = row._replace(peak_rps=(low, mid, high), window_s=decision.forecast.window_s or 0.0)
            self.series[loop.spec.id].append(row)

    def judged(self, verdict: Verdict) -> None:
        """A command has met the fleet."""
        self.applied += verdict.apply
        if not verdict.accepted:
            self._refused[verdict.reason] += 1

    def live(self, origin_ts_ms: int, decisions: Mapping[str, Decision], note: str) -> LiveState:
        """The view's state after a slot."""
        costs = self.costs()
        return LiveState(
            rows=tuple(self._row(loop, decisions.get(loop.spec.id)) for loop in self._loops),
            sim_ts_ms=origin_ts_ms,
            speed=self._speed,
            slots=self.slots,
            forecasts=self._tally.forecast_sources.total(),
            harmony=PolicyLine("harmony", cost=costs.get("harmony"), **self._own()),
            shadows=tuple(
                PolicyLine(policy, cost=costs.get(policy), **total) for policy, total in self._shadows().items()
            ),
            note=note,
        )

    def summary(self) -> dict[str, Any]:
        """The fleet's part of `harmony run --json`, and one row per workload."""
        return {
            "trace": self._trace,
            "speed": self._speed,
            "samples": self.samples,
            "slots": self.slots,
            "decisions": self.num_decisions,
            "commands": len(self._tally.commands),
            "commands_applied": self.applied,
            "commands_refused": dict(self._refused),
            "forecasts_by_source": dict(self._tally.forecast_sources),
            "decisions_by_action": dict(self._tally.by_action),
            "hold_reasons": dict(self._tally.hold_reasons),
            "scored_s": max(0.0, self.end_s - self._score_from_s),
            **self._own(),
            "shadows": self._shadows(),
            "costs": self.costs(),
            "workloads": [self._workload(loop) for loop in self._loops],
        }

    def _row(self, loop: ClosedLoop, decision: Decision | None) -> LiveRow:
        load = loop.load()
        row = LiveRow(
            workload=loop.spec.id,
            load_rps=tuple(self._rates[loop.spec.id]),
            replicas_ready=load.ready,
            replicas_pending=load.pending,
            replicas_wanted=load.ready + load.pending,
            attainment=loop.score(self.end_s, final=self.final).attainment,
            objective=loop.spec.slo.objective,
        )
        return row if decision is None else _with_decision(row, decision)

    def _own(self) -> dict[str, float | None]:
        scores = [loop.score(self._scored_end_s(), final=self.final) for loop in self._loops]
        return self._total(scores, [loop.cluster.scores for loop in self._loops])

    def _shadows(self) -> dict[str, dict[str, float | None]]:
        totals = {}
        for k, shadow in enumerate(self._loops[0].shadows if self._loops else ()):
            copies = [loop.shadows[k] for loop in self._loops]
            scores = [copy.score(self._scored_end_s(), final=self.final) for copy in copies]
            totals[shadow.policy] = self._total(scores, [copy.cluster.scores for copy in copies])
        return totals

    def _total(self, scores: list[ShadowScore], boards: list[Scoreboard]) -> dict[str, float | None]:
        """Over workloads: attainment is that of all requests together."""
        num_counted = sum(b.num_arrived if self.final else b.num_decided for b in boards)
        good = sum(b.num_good for b in boards)
        return {
            "attainment": good / num_counted if num_counted else None,
            "gpu_hours": sum(s.gpu_hours for s in scores),
        }

    def costs(self) -> dict[str, float]:
        """Money by policy, in the currency of `price_per_gpu_hour`; this run's own as `harmony`."""
        end_s = self._scored_end_s()
        total: defaultdict[str, float] = defaultdict(float)
        for loop in self._loops:
            price = loop.spec.price_per_gpu_hour
            total["harmony"] += price * loop.score(end_s, final=self.final).gpu_hours
            for shadow in loop.shadows:
                total[shadow.policy] += price * shadow.score(end_s, final=self.final).gpu_hours
        return dict(total)

    def _workload(self, loop: ClosedLoop) -> dict[str, Any]:
        end_s = self._scored_end_s()
        return {
            "workload": loop.spec.id,
            "requests": loop.cluster.scores.num_arrived,
            **loop.score(end_s, final=self.final)._asdict(),
            "objective": loop.spec.slo.objective,
            "initial_replicas": loop.initial_replicas,
            "launches": len(loop.cluster.replicas) - loop.initial_replicas,
            "shadows": {s.policy: s.score(end_s, final=self.final)._asdict() for s in loop.shadows},
        }

    def _scored_end_s(self) -> float:
        return max(self.end_s, self._score_from_s)


def _with_decision(row: LiveRow, decision: Decision) -> LiveRow:
    fields: dict[str, Any] = {"action": decision.action, "reason": decision.reason}
    if decision.forecast.indicator != ARRIVAL_RATE:
        return replace(row, **fields, band_rps=None, capacity_rps=None)  # the table is one of requests
    peak, capacity = decision.forecast.peak, decision.capacity_per_replica
    if peak is not None and peak.values:
        low, high = _nearest(peak.levels, 0.1), _nearest(peak.levels, 0.9)
        fields["band_rps"] = (peak.values[low], peak.values[high])
        fields["band_levels"] = (peak.levels[low], peak.levels[high])
    if capacity is not None and capacity.values:
        fields["capacity_rps"] = capacity.values[_nearest(capacity.levels, 0.5)]
    return replace(row, **fields)


def _nearest(levels: tuple[float, ...], level: float) -> int:
    return min(range(len(levels)), key=lambda k: abs(levels[k] - level))


THIRTY_DAYS_MS = 30 * 86_400_000
# Slots published ahead of their decisions while nothing may act yet.
WARM_UP_AHEAD = 16
# The part of an endless load by which the static shadow is sized.
SIZING_S = 7_200.0


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
        sizing_s = SIZING_S + score_from_s if self._num_slots is None else self._num_slots * self._step_s
        self.loops = tuple(
            ClosedLoop(workload, fleet.seed + k, self._start_ts_ms, self._step_s, score_from_s, sizing_s)
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
            self._emit_snapshot(feed, slot, origin_ts_ms, pace.behind_s)

    def _publish_slot(self, publisher: SlotPublisher, slot: int) -> int:
        start_s, end_s = slot * self._step_s, (slot + 1) * self._step_s
        origin_ts_ms = self._start_ts_ms + (slot + 1) * self._stream.step_ms
        telemetry = {loop.spec.id: loop.live_slot(start_s, end_s) for loop in self.loops}
        publisher.publish(telemetry, origin_ts_ms + self._stream.grace_ms)
        self.report.record_slot(end_s, sum(t.num_samples for t in telemetry.values()))
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

    def _emit_snapshot(self, feed: DecisionFeed, slot: int, origin_ts_ms: int, behind_s: float) -> None:
        answers = {loop.spec.id: feed.inbox.decision(loop.spec.id, origin_ts_ms) for loop in self.loops}
        decisions = {workload: decision for workload, decision in answers.items() if decision is not None}
        warm_up = slot + 1 < self._warm_up_slots
        self.report.observe(decisions)
        note = f"filling the context of {self._warm_up_slots} slots" if warm_up else ""
        if self._on_update is None:
            return
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
