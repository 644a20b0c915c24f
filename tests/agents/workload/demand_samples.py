"""Pools, whole services that serve requests, and requests to the planner, as tests of the units of load need them."""

from __future__ import annotations

from typing import Any

import numpy as np

from agents.planning.request import PlanInput
from agents.policy import Role, Slo, WorkloadSpec
from agents.workload.state import LearnedState
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.facts import FleetFacts
from streams.windows.table import RecentFacts, Window

STEP_MS = 15_000
COLUMNS = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
CARRIED = 8_000.0  # tokens/s of one replica
FIVE = FleetFacts(0, ready=5, pending=0, draining=0)
CALM, LONG = 50.0, 400.0  # tokens of an answer
TOKEN_S = 0.05
_REQUEST = ("request.arrival_rate", "request.prompt_token_rate", "request.output_token_rate")
TOLD = (*_REQUEST, "engine.running", "engine.waiting")


class Service:
    """Replicas that serve so many requests at once: these stay as long as their answers take, tokens come meanwhile."""

    def __init__(self, seed: int = 0, at_once: int = 1_000_000) -> None:
        self._at_once = at_once
        self._rng = np.random.default_rng(seed)
        self._present: list[list[float]] = []  # seconds left
        self.rows: list[tuple[float, ...]] = []
        self.end_ts_ms = 0

    def slot(self, rate: float, tokens: float) -> None:
        arrived, generated, running, waiting = 0, 0.0, 0.0, 0.0
        for _ in range(15):
            new = int(self._rng.poisson(rate))
            arrived += new
            self._present += [[tokens * TOKEN_S] for _ in range(new)]
            for one in self._present[: self._at_once]:
                served_s = min(one[0], 1.0)
                generated += served_s / TOKEN_S
                one[0] -= served_s
            running += min(len(self._present), self._at_once) / 15
            waiting += max(len(self._present) - self._at_once, 0) / 15
            self._present = [one for one in self._present if one[0] > 0]
        self.rows.append((arrived / 15, arrived * 800 / 15, generated / 15, running, waiting))
        self.end_ts_ms += STEP_MS

    def window(self, context: int = 128, without: str = "", gap: int = 0) -> Window:
        """The last slots as telemetry tells them; the column `without` is missing in the newest `gap` of them."""
        columns = [COLUMNS[name] for name in TOLD]
        values, observed = np.zeros((context, len(COLUMNS)), np.float32), np.zeros((context, len(COLUMNS)), np.bool_)
        rows = self.rows[-context:]
        values[-len(rows) :, columns], observed[-len(rows) :, [*columns, COLUMNS["slo.miss_ratio"]]] = rows, True
        if gap:
            observed[-gap:, COLUMNS[without]] = False
        return Window(
            "w", COLUMNS, values, observed, RecentFacts(None, None, {}, {}), lambda: (values[:0], observed[:0])
        )


def pool(role: Role, **changes: Any) -> WorkloadSpec:
    slo = changes.pop("slo", Slo(2.0, 0.05, 0.99))
    return WorkloadSpec("w", max_replicas=64, role=role, slo=slo, **changes)


def request(declared: WorkloadSpec, **changes: Any) -> PlanInput:
    capacity, lead = CapacityPosterior(CARRIED), LeadTimePosterior(20.0)
    known = {"arrival_rate_now": 16.0, "waiting_now": 0.0, **changes}
    return PlanInput("w", 0, STEP_MS, declared, 5, 0, 0, capacity=capacity, lead=lead, **known)


def grown(state: LearnedState, service: Service, slots: int, tokens: float, **gap: Any) -> None:
    for _ in range(slots):
        service.slot(4.0, tokens)
        state.learn(service.window(**gap), FIVE, (), service.end_ts_ms, STEP_MS)
