"""A padded horizon covers the need, and stays within the network's reach where the need does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.forecast.engine import padded_horizon
from agents.planning.planner import horizon_steps
from model.network.spec import REACH_S


@given(st.integers(1_000, 300_000), st.floats(0.0, 2_000.0), st.floats(1.0, 300.0), st.integers(1, 64))
def test_padding_covers_the_need_and_leaves_the_reach_to_no_one_within_it(
    step_ms: int, lead_s: float, commit_s: float, limit: int
) -> None:
    need = horizon_steps(lead_s, commit_s, step_ms, limit)
    padded = padded_horizon(lead_s, commit_s, step_ms, limit)
    assert padded <= limit
    if need is None:
        assert padded == limit
    else:
        assert need <= padded
        assert padded * step_ms <= 1000 * REACH_S or need * step_ms > 1000 * REACH_S


@pytest.mark.parametrize("step_ms", [5_000, 10_000, 15_000, 30_000])
def test_the_reach_is_a_bucket_of_usual_steps_already(step_ms: int) -> None:
    found = {padded_horizon(need * step_ms / 1000 - 1.0, 1.0, step_ms, 64) for need in range(1, 65)}
    assert found == {8, 16, 24, 32, 48, 64}


@pytest.mark.parametrize(("step_s", "lead_s", "steps"), [(60, 30.0, 4), (60, 181.0, 8), (20, 150.0, 12), (20, 90.0, 8)])
def test_long_steps_are_padded_to_the_reach_and_not_beyond(step_s: int, lead_s: float, steps: int) -> None:
    assert padded_horizon(lead_s, 60.0, 1000 * step_s, 64) == steps
