"""Whatever a forecast says, no plan is below what the present load needs."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planning.planner import plan, reactive_replicas
from agents.planning.request import PlanInput
from model.capacity.lead_time import LeadTimePosterior
from model.capacity.posterior import CapacityPosterior
from tests.agents.planning.plan_samples import policy, spec


@settings(max_examples=40, deadline=None)
@given(
    present=st.floats(0.0, 200.0),
    expected=st.floats(0.0, 50.0),
    waiting=st.floats(0.0, 500.0),
    busy=st.floats(0.0, 12.0),
    capacity=st.floats(0.5, 20.0),
    off_by=st.floats(1.02, 2.5),
)
def test_a_plan_is_never_below_the_reactive_floor(
    present: float, expected: float, waiting: float, busy: float, capacity: float, off_by: float
) -> None:
    now = policy(spec(workload="w", min_replicas=1, max_replicas=16, capacity_rps=capacity))
    request = PlanInput(
        "w", 0, 15_000, now.spec("w"), 4, 0, 0, present, waiting,
        capacity=CapacityPosterior(capacity, off_by=off_by), lead=LeadTimePosterior(60.0), busy_replicas=busy,
    )  # fmt: skip
    (result,) = plan([request], torch.full((1, 16, 32, 1), expected), now)
    floor = reactive_replicas(request, now.commit_s)
    assert result.proposed is not None
    assert floor is not None
    assert result.proposed >= floor
    assert any(risk.replicas == result.proposed for risk in result.risks)
