"""What a run of the simulated fleet says of itself: the live view's rows, the totals, the summary."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agents.actuation.guard import Verdict
from agents.records import Decision
from infra.decision_tally import DecisionTally
from infra.live_state import LiveRow, LiveState, PolicyLine
from infra.simulator.closed_loop import ClosedLoop
from infra.simulator.ledger import Scoreboard
from infra.simulator.shadows import ShadowScore
from streams.catalogue import ARRIVAL_RATE

SHOWN_SLOTS = 60


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
        self._rates: dict[str, deque[float]] = {loop.spec.id: deque(maxlen=SHOWN_SLOTS) for loop in loops}
        self._tally = DecisionTally()
        self._refused: Counter[str] = Counter()

    @property
    def num_decisions(self) -> int:
        return self._tally.total

    def lived(self, end_s: float, num_samples: int) -> None:
        """One slot has been lived and published."""
        self.slots += 1
        self.end_s = end_s
        self.samples += num_samples
        for loop in self._loops:
            self._rates[loop.spec.id].append(loop.load().arrival_rps)

    def decided(self, decisions: Iterable[Decision]) -> None:
        """Decisions have been read, each given once."""
        self._tally.add(decisions)

    def judged(self, verdict: Verdict) -> None:
        """A command has met the fleet."""
        self.applied += verdict.apply
        if not verdict.accepted:
            self._refused[verdict.reason] += 1

    def live(self, origin_ts_ms: int, decisions: Mapping[str, Decision], note: str) -> LiveState:
        """The view's state after a slot."""
        return LiveState(
            rows=tuple(self._row(loop, decisions.get(loop.spec.id)) for loop in self._loops),
            sim_ts_ms=origin_ts_ms,
            speed=self._speed,
            slots=self.slots,
            forecasts=self._tally.forecast_sources.total(),
            harmony=PolicyLine("harmony", **self._own()),
            shadows=tuple(PolicyLine(policy, **total) for policy, total in self._shadows().items()),
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
        counted = sum(b.num_arrived if self.final else b.num_decided for b in boards)
        good = sum(b.num_good for b in boards)
        return {"attainment": good / counted if counted else None, "gpu_hours": sum(s.gpu_hours for s in scores)}

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


def _nearest(levels: tuple[float, ...], wanted: float) -> int:
    return min(range(len(levels)), key=lambda k: abs(levels[k] - wanted))
