"""Lead-time posterior: quantiles of Student's t, learning, outliers, state."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.capacity.lead_time import LeadTimePosterior, student_table


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),
    # Published tables of Student's t.
    [(1, 0.95, 6.314), (2, 0.975, 4.303), (6, 0.9, 1.440), (6, 0.99, 3.143), (30, 0.95, 1.697), (120, 0.995, 2.617)],
)
def test_quantiles_of_student_t(freedom: float, level: float, expected: float) -> None:
    probability, value = student_table(float(freedom))
    assert np.interp(level, probability, value) == pytest.approx(expected, abs=2e-3)


def test_before_any_outcome_it_is_the_declared_figure_with_a_margin() -> None:
    posterior = LeadTimePosterior(120.0)
    assert posterior.quantile(0.5) == pytest.approx(120.0)
    assert 150.0 < posterior.quantile(0.95) < 200.0


@pytest.mark.parametrize("seed", range(3))
def test_learns_location_and_spread(seed: int) -> None:
    rng = np.random.default_rng(seed)
    posterior = LeadTimePosterior(30.0)
    for lead_time_s in rng.lognormal(math.log(200.0), 0.3, 400):
        assert posterior.update(float(lead_time_s))
    assert posterior.quantile(0.5) == pytest.approx(200.0, rel=0.12)
    assert posterior.quantile(0.95) == pytest.approx(200.0 * math.exp(0.3 * 1.645), rel=0.2)


def test_is_the_conjugate_update() -> None:
    """The closed form of normal-inverse-gamma for a whole sample, against one outcome at a time."""
    sample = [90.0, 110.0, 150.0, 131.0, 99.0]
    posterior = LeadTimePosterior(100.0)
    state = posterior.snapshot()
    logs = np.log(sample)
    count = state["count"] + len(logs)
    mean = (state["count"] * state["mean"] + logs.sum()) / count
    shift = state["count"] * len(logs) / count * (logs.mean() - state["mean"]) ** 2
    scale = state["scale"] + 0.5 * ((logs - logs.mean()) ** 2).sum() + 0.5 * shift
    for lead_time_s in sample:
        posterior.update(lead_time_s)
    got = posterior.snapshot()
    assert (got["mean"], got["scale"], got["count"]) == pytest.approx((mean, scale, count))
    assert got["shape"] == state["shape"] + 0.5 * len(logs)


def test_follows_a_change() -> None:
    posterior = LeadTimePosterior(60.0)
    for _ in range(300):
        posterior.update(60.0)
    for _ in range(100):
        posterior.update(180.0)
    assert posterior.quantile(0.5) > 140.0


def test_one_stuck_replica_is_no_law_and_nonsense_is_ignored() -> None:
    posterior = LeadTimePosterior(60.0)
    for _ in range(20):
        posterior.update(60.0)
    posterior.update(1e9)
    assert posterior.quantile(0.5) < 75.0
    before = posterior.snapshot()
    assert not any(posterior.update(x) for x in (0.0, -3.0, math.nan, math.inf))
    assert posterior.snapshot() == before


def test_quantiles_ascend_and_are_finite_at_the_extremes() -> None:
    posterior = LeadTimePosterior(1e-6)
    posterior.update(1e12)
    quantiles = posterior.quantiles(np.linspace(0.0, 1.0, 101))
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles) >= 0).all()
    assert (quantiles > 0).all()


def test_draws_follow_the_quantiles_and_the_seed() -> None:
    posterior = LeadTimePosterior(120.0)
    draws = posterior.draws(2000, 7)
    assert np.array_equal(draws, posterior.draws(2000, 7))
    assert not np.array_equal(draws, posterior.draws(2000, 8))
    assert np.mean(draws <= posterior.quantile(0.9)) == pytest.approx(0.9, abs=1e-3)


def test_a_restored_posterior_goes_on_as_the_same() -> None:
    posterior = LeadTimePosterior(120.0)
    for x in (80.0, 300.0, 95.5):
        posterior.update(x)
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(posterior.snapshot()))
    restored = LeadTimePosterior.restore(state, 120.0)
    for p in (posterior, restored):
        p.update(101.25)
    assert restored.snapshot() == posterior.snapshot()
    assert restored.quantiles((0.05, 0.95)).tolist() == posterior.quantiles((0.05, 0.95)).tolist()


@given(
    st.lists(st.floats(100.0, 600.0), max_size=90),
    st.sampled_from((120.0, 300.0)),
    st.sampled_from((120.0, 200.0, 900.0)),
)
def test_another_declared_figure_is_as_if_it_had_been_declared_from_the_beginning(
    outcomes: list[float], before_s: float, now_s: float
) -> None:
    told, expected = LeadTimePosterior(before_s), LeadTimePosterior(now_s)
    for lead_time_s in outcomes:
        told.update(lead_time_s)
        expected.update(lead_time_s)
    restored = LeadTimePosterior.restore(told.snapshot(), now_s).snapshot()
    assert restored == pytest.approx(expected.snapshot(), rel=1e-9)
    if before_s == now_s:
        assert restored == told.snapshot()


def test_without_outcomes_the_figure_declared_now_counts_whatever_release_wrote_the_snapshot() -> None:
    old = LeadTimePosterior(120.0).snapshot()
    del old["declared_s"]
    restored = LeadTimePosterior.restore(old, 600.0)
    assert restored.quantiles((0.05, 0.95)).tolist() == LeadTimePosterior(600.0).quantiles((0.05, 0.95)).tolist()
    learned = LeadTimePosterior(120.0)
    learned.update(200.0)
    known = learned.snapshot()
    del known["declared_s"]  # what lay beneath it cannot be told any more
    assert LeadTimePosterior.restore(known, 600.0).quantile(0.5) == learned.quantile(0.5)


def test_bad_figures_are_named() -> None:
    with pytest.raises(ValueError, match="declared_s must be a positive number"):
        LeadTimePosterior(0.0)
    with pytest.raises(ValueError, match="version 9"):
        LeadTimePosterior.restore({"v": 9}, 120.0)
