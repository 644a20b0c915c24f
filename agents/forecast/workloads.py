"""The workloads of a pages partition: their windows, their learned state, and the subjects of a slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agents.forecast.bursts import DEMAND
from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.forecast.publish import Forecasts
from agents.planning.limits import limits_of
from agents.policy import Policy
from agents.records import InputFacts, PlanRecord, WorkloadPlan
from agents.workload.signals import SignalLimits, input_facts, outcomes_now
from agents.workload.state import LearnedState, Subject, new_state
from agents.workload.units import demand_steps
from model.calibration.trust import TIERS
from streams.catalogue import Indicator
from streams.config import StreamConfig
from streams.meter import Meter
from streams.pages.chain import JoinedSlot
from streams.records.facts import FleetFacts
from streams.windows.coarse import COARSE_ROWS, COARSE_STEP_MS, CoarseRow
from streams.windows.table import Window, WindowTable

NO_INPUTS: Final = InputFacts(
    arrival_rate=None,
    observed_ratio=0.0,
    observed_steps=0,
    oldest_age_ms=None,
    coverage_ratio=0.0,
    censored=False,
    flat=False,
    cliff=False,
    zero_after_nonzero=False,
    offsets={},
)


class PartitionWorkloads:
    """The workloads of one pages partition, from the first slot with one of them to L slots without.

    Args:
        min_context: observed steps that the forecaster asks for.

    Attributes:
        table: the windows.
    """

    def __init__(
        self,
        config: StreamConfig,
        catalogue: tuple[Indicator, ...],
        policy: Policy,
        meter: Meter,
        min_context: int,
    ) -> None:
        self.table = WindowTable(catalogue, config.context_steps, config.step_ms)
        self._config = config
        self._policy = policy
        self._meter = meter
        self._min_context = min_context
        self._limits = SignalLimits(policy.guards.cliff_ratio, config.source_silence_steps)
        self._states: dict[str, LearnedState] = {}

    def fill(self, joined: JoinedSlot) -> CoarseRow | None:
        """Store the slot's pages; returns the coarse row that it completes, if it does."""
        self.table.advance(joined.slot)
        for source in sorted(joined.pages):
            self.table.write(joined.pages[source])
        for workload in self.table:
            if workload not in self._states:
                self._states[workload] = new_state(workload, self._policy, joined.slot)
        return self.table.accumulate_coarse()

    def retire(self, adopted: PlanRecord | None = None) -> list[WorkloadPlan]:
        """Forget workloads unseen for L slots; each gets one last plan that says so.

        Args:
            adopted: the slot's plan, where an earlier life published it. Whom it does not retire, for L was longer
                then, stays until a later plan does.
        """
        for workload in self.table.unseen():
            self.table.remove(workload)
        # Where L has shrunk, some that a commit record knew have no row: they had been silent for longer already.
        absent = sorted(workload for workload in self._states if workload not in self.table)
        if adopted is not None:
            retired = {plan.workload for plan in adopted.workloads if plan.refused == "retired"}
            absent = [workload for workload in absent if workload in retired]
        for workload in absent:
            del self._states[workload]
        return [WorkloadPlan(workload, "retired", NO_INPUTS) for workload in absent]

    def subjects(
        self, workloads: Sequence[str], slot: int, origin_ts_ms: int, offsets: Mapping[str, int]
    ) -> list[Subject]:
        """What is asked of these workloads at the end of a slot, once it has taught what it does.

        Args:
            offsets: of the newest record of each source that the slot's pages rest on.
        """
        shared = dict(offsets)
        return [self._subject(window, slot, origin_ts_ms, shared) for window in self.table.windows(workloads)]

    def remember(self, plans: Sequence[WorkloadPlan], origin_ts_ms: int) -> None:
        """What later plans read of these; the same for plans just made and for adopted ones."""
        for plan in plans:
            state = self._states.get(plan.workload)
            if state is not None and plan.outlook is not None:
                state.trust.expect(plan.outlook)
            if state is not None and plan.proposed is not None:
                state.last_proposed = plan.proposed
                state.expect(plan, origin_ts_ms, self._policy.commit_s)

    def state_of(self, workload: str) -> LearnedState:
        """The learned state of a workload of this partition."""
        return self._states[workload]

    def names(self) -> list[str]:
        """Workloads that have state, in the order of a commit record."""
        return sorted(self._states)

    def snapshots(self, workloads: Sequence[str]) -> dict[str, StateSnapshot]:
        """For a commit record."""
        return {workload: snapshot_state(self._states[workload]) for workload in workloads}

    def restore(self, states: Mapping[str, StateSnapshot], slot: int) -> None:
        """As a commit record of that slot says; pages and coarse rows are still to be written."""
        self._states = {w: restore_state(w, s, self._policy) for w, s in states.items()}
        self.table.reserve(len(states))
        self.table.advance(slot)

    def restore_coarse(self, row: CoarseRow) -> None:
        """Store a row that an earlier run completed, for the workloads that existed then."""
        self.table.write_coarse(row.keep([w for w in row.workloads if self._existed_at(w, row.index)]))

    def lost_coarse_rows(self, oldest: int | None, newest: int) -> int:
        """The number of coarse rows of the past week that should exist for these workloads and cannot be read.

        Args:
            oldest: index of the first row that could be read; None without any.
            newest: index of the last row completed.
        """
        if not self._states:
            return 0
        first_slot = min(state.since_slot for state in self._states.values())
        first = (self._config.slot_end_ms(first_slot) - 1) // COARSE_STEP_MS
        first_readable = newest + 1 if oldest is None else oldest
        return max(0, first_readable - max(first, newest - COARSE_ROWS + 1))

    def _existed_at(self, workload: str, coarse_index: int) -> bool:
        state = self._states.get(workload)
        return state is not None and (coarse_index + 1) * COARSE_STEP_MS > state.since_slot * self._config.step_ms

    def _learn(self, window: Window, slot: int) -> None:
        """Update the posteriors with what the slot says of capacity and lead times."""
        state, has_data = self._states[window.workload], self.table.last_seen(window.workload) == slot
        end_ts_ms, step_ms, every = self._config.slot_end_ms(slot), self._config.step_ms, self._policy.plan_every
        value, pending = window.newest(DEMAND) if has_data else None, state.trust.pending_of(slot)
        if value is not None and pending is not None:
            state.jumps.observe(pending.mid, pending.high, value, end_ts_ms, every * step_ms, step_ms)
        for moved in state.trust.observe(slot, value):
            self._meter.count("forecast_tier_changes_total", tier=TIERS[moved])
        if has_data:
            state.learn(
                window, window.facts.fleet, outcomes_now(window), end_ts_ms, step_ms, every, self._policy.bearable_ratio
            )
        else:
            state.idle_since_ms = None

    def _subject(self, window: Window, slot: int, origin_ts_ms: int, offsets: dict[str, int]) -> Subject:
        state, step_ms = self._states[window.workload], self._config.step_ms
        requests = window.facts.newest.get("requests")
        if requests is not None:
            state.silent.observe(requests.sources_known, window.facts.fleet, slot, step_ms, self._limits.silence_steps)
        window = state.silent.in_full(window, self.table.catalogue, slot)
        self._learn(window, slot)
        steps = demand_steps(state.unit, window)
        inputs = input_facts(
            window, origin_ts_ms, step_ms, self.table.num_coarse, self._limits, offsets, steps,
            state.silent.missing,
        )  # fmt: skip
        fleet, pending_since_ms = window.facts.fleet, window.facts.pending_since_ms
        age_ms = origin_ts_ms - fleet.ts_ms if fleet is not None else None
        refused = self._refusal(window, slot, min(inputs.observed_steps, steps), fleet)
        standing = limits_of(state, window, fleet, origin_ts_ms, step_ms)
        return Subject(window, state, inputs, fleet, age_ms, pending_since_ms, refused, standing)

    def _refusal(self, window: Window, slot: int, steps: int, fleet: FleetFacts | None) -> str | None:
        last_sample = window.facts.last_samples.get("requests")
        if last_sample is None or slot - last_sample.slot >= self._limits.silence_steps:
            return "silent"
        if steps < self._min_context:
            return "warming_up"
        if fleet is None:
            return "no_fleet_facts"
        return None


# Makes the published quantiles of some workloads when awaited, once.
ForecastTask = Callable[[], Awaitable[Forecasts]]


@dataclass(frozen=True, slots=True)
class PlannedSlot:
    """The plans of a slot and the tasks that make its forecasts.

    Attributes:
        plans: one per subject, in their order.
        forecasts: tasks that commands do not wait for; each holds paths, a hundred times as large as its result.
    """

    plans: list[WorkloadPlan]
    forecasts: Sequence[ForecastTask] = ()


class ForecastEngine(Protocol):
    """Forecasts and plans the workloads of one slot."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def min_context(self) -> int: ...

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> PlannedSlot:
        """`partition_size` is the number of workloads that share the forecaster, of which these are some or all."""
        ...
