"""Draws spread evenly over the posteriors, against the posteriors' own quantiles; tables of many; peaks of paths."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from model.capacity.draws import CapacityTable, LeadTable, capacity_strata, lead_strata, strata_order
from model.capacity.lead_time import LeadTimePosterior, student_table
from model.capacity.posterior import SPACING, CapacityPosterior, SlotEvidence
from model.contract import quantiles_of_paths
from model.planning.search import finite_rows, peak_quantiles

LEVELS = (0.05, 0.5, 0.95)


def learned(slots: int) -> CapacityPosterior:
    posterior = CapacityPosterior(2.0, smoothing_s=0.0)
    for k in range(slots):
        factor = 0.7 + 0.6 * (k % 20) / 20
        rate, missed = 20.0 * factor, 0.0 if factor < 1.0 else 0.4
        posterior.observe(SlotEvidence((k + 1) * 15_000, 15.0, rate, missed, None, 10, 0, 0, 2.0, 0.99))
    return posterior


def lead(outcomes: int) -> LeadTimePosterior:
    posterior = LeadTimePosterior(50.0)
    for k in range(outcomes):
        posterior.update(40.0 + 5.0 * (k % 5))
    return posterior


@pytest.mark.parametrize("slots", [0, 5, 200])
@pytest.mark.parametrize("num", [1, 16, 1000])
def test_capacity_strata_are_quantiles_of_evenly_spaced_levels(slots: int, num: int) -> None:
    posterior = learned(slots)
    strata = capacity_strata(num, posterior.cumulative()[0], SPACING, posterior.cumulative()[1])
    assert strata == pytest.approx(posterior.quantiles((np.arange(num) + 0.5) / num), rel=1e-9)


@pytest.mark.parametrize("outcomes", [0, 30])
@pytest.mark.parametrize(
    ("step_s", "delay_s", "most"), [(15.0, 0.0, 8), (5.0, 7.0, 40), (15.0, 0.0, 2), (60.0, 0.0, 0)]
)
def test_lead_strata_are_quantiles_in_whole_steps(outcomes: int, step_s: float, delay_s: float, most: int) -> None:
    posterior = lead(outcomes)
    location, scale, freedom = posterior.student()
    probabilities, values = student_table(freedom)
    strata = lead_strata(1024, location, scale, values, probabilities, delay_s, step_s, most)
    exact = posterior.quantiles((np.arange(1024) + 0.5) / 1024) + delay_s
    expected = np.minimum(np.ceil(exact / step_s - 1e-9), most)
    # One stratum may fall on either side of a step's end, by the rounding of the table.
    assert (strata != expected).sum() <= most
    assert (np.diff(strata) >= 0).all()


def test_every_path_has_its_share_of_all_strata() -> None:
    for order in strata_order(1024, 64):
        assert sorted(order.tolist()) == list(range(1024))
        by_path = np.sort(order.reshape(16, 64), axis=0)
        assert (by_path // 64 == np.arange(16)[:, None]).all()


def test_tables_say_what_the_posteriors_say() -> None:
    capacities = [learned(50), CapacityPosterior(None), CapacityPosterior(3.0)]
    table = CapacityTable.of(capacities)
    assert table.known == [True, False, True]
    for row in (0, 2):
        assert table.quantiles(LEVELS)[row] == pytest.approx(capacities[row].quantiles(LEVELS), rel=1e-9)
    leads = [lead(0), lead(7), lead(0), lead(300)]
    for row, known in zip(LeadTable.of(leads).quantiles(LEVELS), leads, strict=True):
        assert row == pytest.approx(known.quantiles(LEVELS), rel=1e-12)
    assert CapacityTable.of([CapacityPosterior(None)]).known == [False]


def test_peaks_are_those_of_the_span() -> None:
    paths = torch.randn(3, 9, 50, generator=torch.Generator().manual_seed(1))
    first, end = np.array([2, 0]), np.array([7, 9])
    found = peak_quantiles(paths.numpy(), np.array([2, 0]), first, end, LEVELS)
    for row, (r, a, b) in enumerate([(2, 2, 7), (0, 0, 9)]):
        peak = paths[r, a:b].amax(dim=0).clamp(min=0.0)
        assert found[row] == pytest.approx(quantiles_of_paths(peak, torch.tensor(LEVELS)).numpy(), rel=1e-6)


def test_rows_with_a_number_that_is_none_are_found() -> None:
    paths = np.ones((4, 5, 4), np.float32)
    paths[1, 3, 2] = math.nan
    paths[2, 4, 0] = -math.inf
    assert finite_rows(paths).tolist() == [True, False, False, True]


def test_quantiles_are_the_same_however_they_are_sorted() -> None:
    paths = torch.randn(5, 7, 64, generator=torch.Generator().manual_seed(2))
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    by_torch = quantiles_of_paths(paths.to(torch.bfloat16), levels)
    assert torch.equal(quantiles_of_paths(paths.to(torch.bfloat16).float(), levels).to(torch.bfloat16), by_torch)
    assert torch.equal(quantiles_of_paths(paths.mT, levels), quantiles_of_paths(paths.mT.clone(), levels))
