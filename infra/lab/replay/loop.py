"""The worker's three stages on logs held in memory: telemetry records in, commands out, nothing else between.

    telemetry values ─▶ IngestKernel ─▶ pages ─▶ ForecastKernel (Engine, planner) ─▶ plans ─▶ DecideKernel ─▶ commands

The kernels are those that `harmony worker` runs on Kafka; only the transport is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_command, decode_decision
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.workloads import ForecastEngine, PlannedSlot
from agents.policy import Policy
from agents.records import Command, Decision
from agents.workload.state import LearnedState, Subject
from infra.lab.replay.setting import PriorDays
from model.bursts.recurring import RecurringSurges
from model.calibration.budget import ErrorBudget
from model.capacity.grid import GRID
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import SPACING, CapacityPosterior
from model.contract import ContextBatch, ForecastBatch, Forecaster
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord, OutRecord
from streams.meter import Meter, NullMeter
from streams.records.schema import encode_tick, record_key
from streams.topics import Topics
from streams.windows.coarse import COARSE_STEP_MS, CoarseRow

# Ablations of learning: the declared capacity or lead time replaces the learned one and counts as certain, or the
# price of a miss stays as it is at first.


StateOverride = Callable[[LearnedState], LearnedState]


class FixedCapacity(CapacityPosterior):
    """A posterior with all its mass in the grid cell of the declared capacity; its miss curve is the prior's."""

    def __init__(self, declared_rps: float, objective: float) -> None:
        super().__init__(declared_rps, objective=objective)
        self._log_rps = float(np.log(declared_rps))

    def cumulative(self) -> tuple[float, NDArray[np.float64]]:
        """Return the lower edge of the grid (log requests/s) and the cumulative distribution on it."""
        below = GRID // 2
        return self._log_rps - (below + 0.5) * SPACING, np.repeat((0.0, 1.0), (below + 1, GRID - below))


class FixedLeadTime(LeadTimePosterior):
    """A posterior that is as good as certain of the declared lead time."""

    def student(self) -> tuple[float, float, float]:
        """Return location, scale and degrees of freedom of the log lead time."""
        return self._declared_log, 1e-9, 60.0


def declared_capacity(state: LearnedState) -> LearnedState:
    """Return the state with the declared capacity in place of the learned one."""
    declared = state.spec.capacity_rps
    return state if declared is None else replace(state, capacity=FixedCapacity(declared, state.spec.slo.objective))


def declared_lead_time(state: LearnedState) -> LearnedState:
    """Return the state with the declared lead time in place of the learned one."""
    return replace(state, lead=FixedLeadTime(state.spec.lead_time_s))


def constant_price(state: LearnedState) -> LearnedState:
    """Return the state with an untouched error budget: a miss costs what it costs at first, whatever was missed."""
    return replace(state, budget=ErrorBudget())


class OverriddenEngine:
    """Engine of an ablation: it changes the learned state before the planner sees it."""

    def __init__(self, inner: ForecastEngine, state_override: StateOverride) -> None:
        self._inner = inner
        self._state_override = state_override

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    @property
    def min_context(self) -> int:
        return self._inner.min_context

    async def plan(
        self, subjects: Sequence[Subject], origin_ts_ms: int, with_forecast: bool, partition_size: int
    ) -> PlannedSlot:
        """As an engine does."""
        overridden = [replace(subject, state=self._state_override(subject.state)) for subject in subjects]
        return await self._inner.plan(overridden, origin_ts_ms, with_forecast, partition_size)


_TOPICS = Topics(partitions=1)


class MemoryLoop:
    """One fleet's worker with one partition per topic.

    Args:
        policy: as the worker would load it.
        stream: grace and skew 0 are right here: nothing is late.
        state_override: replaces the learned state that the planner sees, for ablations.
        meter: of stage 2; None: nothing is measured.
    """

    def __init__(
        self,
        policy: Policy,
        stream: StreamConfig,
        forecaster: Forecaster,
        state_override: StateOverride | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._stream = stream
        meter = meter or NullMeter()
        self._ingest = IngestKernel(0, "requests", stream, DEFAULT_CATALOGUE, _TOPICS)
        batcher = MicroBatcher(_direct(forecaster), deadline_s=0.0)
        engine: ForecastEngine = Engine(forecaster, batcher, policy, DEFAULT_CATALOGUE, stream.step_ms, meter)
        if state_override is not None:
            engine = OverriddenEngine(engine, state_override)
        self._forecast = ForecastKernel(
            0, stream, DEFAULT_CATALOGUE, _TOPICS, policy, engine, meter, sources=("requests",)
        )
        self._decide = DecideKernel(policy, stream, _TOPICS)
        self._offsets = {"telemetry": 0, "pages": 0, "plans": 0}
        self._loop = asyncio.new_event_loop()
        self.decisions: list[Decision] = []

    @property
    def forecast(self) -> ForecastKernel:
        """Stage 2, to read."""
        return self._forecast

    def close_slot(self, workload: str, values: Sequence[bytes], slot_end_ms: int) -> list[Command]:
        """Publish a slot's telemetry and the tick that closes it; returns the commands that follow."""
        key = record_key(workload)
        records = [self._log("telemetry", slot_end_ms, key, value) for value in values]
        records.append(self._log("telemetry", slot_end_ms, None, encode_tick(slot_end_ms + self._stream.grace_ms)))
        pages = [out for emission in self._ingest.fold(records) for out in emission.commits]
        commands: list[Command] = []
        for plan in self._plans(pages, slot_end_ms):
            emission = self._decide.fold(self._log("plans", slot_end_ms, plan.key, plan.value))
            for group in emission.outputs:
                for out in group:
                    if out.value is not None and out.topic == _TOPICS.commands:
                        commands.append(decode_command(out.value))
                    elif out.value is not None and out.topic == _TOPICS.decisions:
                        self.decisions.append(decode_decision(out.value))
        return commands

    def restore_history(self, workload: str, past: PriorDays, start_ts_ms: int) -> None:
        """Load what came before the first slot; the workload must exist.

        Args:
            start_ts_ms: when the past ends; a full ten minutes.
        """
        table, after = self._forecast.table, start_ts_ms // COARSE_STEP_MS
        names = tuple(indicator.name for indicator in table.catalogue if indicator.level == 1)
        mask = np.ones((1, len(names)), np.bool_)
        for index, row in zip(range(after - len(past.means), after), past.means.astype(np.float32), strict=True):
            table.write_coarse(CoarseRow(index, (workload,), names, row[None], mask))
        self._forecast.state_of(workload).surges = RecurringSurges.restore(past.surges)

    def close(self) -> None:
        """End the event loop."""
        self._loop.close()

    def _plans(self, pages: list[OutRecord], stamp_ms: int) -> list[OutRecord]:
        records = [self._log("pages", stamp_ms, out.key, out.value) for out in pages]

        async def fold() -> list[OutRecord]:
            return [
                out
                async for emission in self._forecast.fold(records)
                for group in emission.outputs
                for out in group
                if out.topic == _TOPICS.plans
            ]

        return self._loop.run_until_complete(fold())

    def _log(self, name: str, stamp_ms: int, key: bytes | None, value: bytes | None) -> LogRecord:
        offset = self._offsets[name]
        self._offsets[name] = offset + 1
        return LogRecord(offset, stamp_ms, key, value)


def _direct(forecaster: Forecaster) -> Callable[[ContextBatch, int, int], Awaitable[ForecastBatch]]:
    async def forecast(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        with torch.inference_mode():
            return forecaster.forecast(batch, horizon, num_paths)

    return forecast
