"""The planner as hypothesis drives it: slots and outcomes of a workload, restarts between them, plans at any time."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

from agents.planning.planner import PlanInput, PlanResult, plan
from agents.policy import Policy, Slo, WorkloadSpec
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior, SlotEvidence

STEP_MS = 15_000
LEAD_TIME_S = 60.0
HORIZON = 16
POLICY = Policy(paths_screen=32)
ODD = (math.nan, math.inf, -math.inf, -1.0, 0.0)
rates = st.floats(0.0, 500.0) | st.sampled_from((None, *ODD))


def level(rate: float, spread: float) -> Tensor:
    """Paths [1, S, H, 1], evenly spread around a rate."""
    around = torch.linspace(1.0 - spread, 1.0 + spread, 16)[:, None].expand(-1, HORIZON)
    return (rate * around)[None, ..., None].contiguous()


class PlannerMachine(RuleBasedStateMachine):
    """What is learned, beside the same restored from a snapshot now and then: one plan, within bounds and risk."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_763_636_400_000
        self.ready, self.pending, self.last = 3, 0, 3
        self.rate: float | None = None
        self.waiting: float | None = None

    @initialize(
        declared=st.none() | st.floats(0.1, 50.0),
        bounds=st.tuples(st.integers(0, 4), st.integers(0, 40)).map(sorted),
        ttft_s=st.floats(0.1, 30.0),
        objective=st.sampled_from((0.5, 0.9, 0.99, 0.999)),
    )
    def begin(self, declared: float | None, bounds: list[int], ttft_s: float, objective: float) -> None:
        low, high = bounds
        slo = Slo(ttft_s=ttft_s, objective=objective)
        self.spec = WorkloadSpec("w", min_replicas=low, max_replicas=max(high, 1), slo=slo, capacity_rps=declared)
        self.capacity = CapacityPosterior(declared, objective=objective)
        self.lead = LeadTimePosterior(LEAD_TIME_S)

    @rule(rate=rates, waiting=rates, missed=st.none() | st.floats(0.0, 1.0) | st.sampled_from(ODD))
    def slot(self, rate: float | None, waiting: float | None, missed: float | None) -> None:
        self.now_ms += STEP_MS
        self.rate, self.waiting = rate, waiting
        evidence = SlotEvidence(
            end_ts_ms=self.now_ms, step_s=15.0, arrival_rate=rate, waiting=waiting, miss_ratio=missed,
            ready=self.ready, pending=self.pending, draining=0, ttft_s=self.spec.slo.ttft_s,
            objective=self.spec.slo.objective,
        )  # fmt: skip
        self.capacity.observe(evidence)

    @rule(load=st.floats(0.5, 4.0), slots=st.integers(5, 40), missed=st.sampled_from((0.0, 0.0, 0.3)))
    def a_while(self, load: float, slots: int, missed: float) -> None:
        for _ in range(slots):
            self.slot(load * max(self.ready, 1), 0.0, missed)

    @rule(ready=st.integers(0, 40), pending=st.integers(0, 6))
    def fleet(self, ready: int, pending: int) -> None:
        self.ready, self.pending = ready, pending

    @rule(lead_s=st.floats(0.01, 2_000.0) | st.sampled_from(ODD))
    def outcome(self, lead_s: float) -> None:
        assert self.lead.update(lead_s) == (math.isfinite(lead_s) and lead_s > 0)

    @rule()
    def restart(self) -> None:
        self.capacity, self.lead = self._stored()

    def _stored(self) -> tuple[CapacityPosterior, LeadTimePosterior]:
        told = msgspec.msgpack.decode(msgspec.msgpack.encode([self.capacity.snapshot(), self.lead.snapshot()]))
        capacity = CapacityPosterior.restore(
            told[0], declared_rps=self.spec.capacity_rps, objective=self.spec.slo.objective
        )
        return capacity, LeadTimePosterior.restore(told[1], LEAD_TIME_S)

    @rule(
        demand=st.floats(0.0, 300.0),
        spread=st.sampled_from((0.0, 0.2, 0.9)),
        spoilt=st.sampled_from((None,) * 5 + (math.nan, math.inf)),
        epsilon=st.sampled_from((None, 0.001, 0.2)),
        price=st.floats(0.1, 50_000.0),
    )
    def plan(self, demand: float, spread: float, spoilt: float | None, epsilon: float | None, price: float) -> None:
        paths = level(demand, spread)
        if spoilt is not None:
            paths[0, 3, 5, 0] = spoilt
        asked = PlanInput(
            "w", self.now_ms, STEP_MS, self.spec, self.ready, self.pending, 0, self.rate, self.waiting,
            self.capacity, self.lead, last_replicas=self.last, epsilon=epsilon, price=price,
        )  # fmt: skip
        (told,) = plan([asked], paths, POLICY)
        check(told, asked, finite=spoilt is None)

        capacity, lead = self._stored()
        restored = replace(asked, capacity=capacity, lead=lead)
        neighbour = replace(asked, workload="n", ready=9, arrival_rate_now=3.0)
        _, again = plan([neighbour, restored], torch.cat((level(7.0, 0.3), paths)), POLICY)
        assert again == told, "neither a restart nor a neighbour changes a plan"
        if told.proposed is not None:
            self.last = told.proposed


def check(told: PlanResult, asked: PlanInput, *, finite: bool) -> None:
    """Within bounds, and a count is what its proposer says."""
    low, high = asked.bounds
    numbers = [x for q in (told.peak, told.capacity, told.lead_time_s) if q is not None for x in q.values]
    numbers += [x for r in told.risks for x in (r.p_miss, r.p_miss_stderr, r.cost_gpu_hours, r.miss_share)]
    assert all(math.isfinite(x) and x >= 0 for x in numbers), told
    assert all(low <= n <= high for n in told.proposals.values())
    assert told.reactive_replicas is None or low <= told.reactive_replicas <= high
    if not finite:
        assert told.refused is not None
    if told.refused is not None:
        assert (told.proposed, told.proposer, told.risks) == (None, None, ())
        return
    assert told.proposed is not None
    assert low <= told.proposed <= high
    if told.proposer == "capacity_unknown":
        assert not asked.capacity.known
        return
    counts = [r.replicas for r in told.risks]
    assert counts == sorted(set(counts))
    assert told.proposed in counts
    chances = [r.p_miss for r in told.risks]
    assert all(0.0 <= p <= 1.0 for p in chances)
    assert chances == sorted(chances, reverse=True), "more replicas at a higher risk"
    assert told.miss_price == asked.price
    if told.proposer == "cheapest":
        assert told.proposed == told.proposals["cheapest"]
    elif told.proposer == "queue_bound":
        assert told.proposed > told.proposals["cheapest"]
    else:
        assert (told.proposer, told.proposed) == ("maximum", high)


TestPlannerMachine = PlannerMachine.TestCase
TestPlannerMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
