"""Evidence in context: the candidate that did well there is told from the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.contract import ContextBatch
from model.network.candidates import NAMES, STEPS, Candidates, bands, evidence, fit_changes
from model.network.features import extract_features
from model.network.spec import NetworkSpec
from tests.model.batches import autoregressive, context_batch


def _candidates(batch: ContextBatch) -> Candidates:
    return extract_features(batch, NetworkSpec()).candidates


def _best(values: Tensor) -> tuple[str, Candidates]:
    found = _candidates(context_batch(values))
    total = found.evidence[0, 0].sum(-1).masked_fill(~found.offered[0, 0, :, 0], torch.inf)
    return NAMES[int(total.argmin())], found


def test_a_course_that_repeats_is_best_told_by_what_followed_its_like() -> None:
    shape = torch.randn(17, generator=torch.Generator().manual_seed(1))
    name, found = _best(shape.repeat(20)[None, :, None])
    assert name in ("analog", "analog_shifted")
    assert found.evidence[0, 0, NAMES.index("last")].min() > 2
    assert found.scales[0, 0, -2:].max() < 0.01


def test_a_random_walk_is_best_told_by_its_last_values() -> None:
    walk = autoregressive(12, 400, 0.9999, seed=2)
    found = _candidates(context_batch(walk.float()))
    mean = found.evidence.mean((0, 1, 3))
    assert mean[NAMES.index("last")] < mean[NAMES.index("ewma_.05")]
    assert mean[NAMES.index("last")] < mean[NAMES.index("mean")]


def test_noise_is_best_told_by_its_mean() -> None:
    found = _candidates(context_batch(autoregressive(16, 400, 0.0, seed=3).float()))
    mean = found.evidence.mean((0, 1, 3))
    assert mean[NAMES.index("mean")] < mean[NAMES.index("last")]


def test_a_day_that_returns_is_told_from_one_that_does_not() -> None:
    time = torch.arange(1008.0 + 30)
    season = torch.sin(time * 2 * torch.pi / 144) + 0.01 * torch.randn(1038, generator=torch.Generator().manual_seed(4))
    found = _candidates(context_batch(season[None, :, None], step_ms=600_000))
    assert found.evidence[0, 0, NAMES.index("day_recent")].max() < found.evidence[0, 0, NAMES.index("last"), 1]


def test_units_and_what_is_masked_mean_nothing() -> None:
    values = autoregressive(3, 200, 0.8, seed=5).float() + 10
    batch = context_batch(values)
    plain = _candidates(batch).evidence
    assert torch.allclose(_candidates(context_batch(values * 64)).evidence, plain, atol=1e-3)
    gap = values.clone()
    gap[:, 150:160] = torch.nan
    holes = context_batch(gap)
    rubbish = context_batch(gap.nan_to_num(1e6), holes.observed)
    assert torch.equal(_candidates(holes).evidence, _candidates(rubbish).evidence)


def test_scores_are_means_over_what_is_known() -> None:
    error = torch.arange(24.0).view(1, 2, 12)
    known = torch.ones(1, 2, 12, dtype=torch.bool)
    known[0, 1] = False
    assert bands(error, known)[0].tolist() == pytest.approx([0.5, sum(range(STEPS)) / STEPS])
    assert bands(error, torch.zeros_like(known)).isnan().all()


def test_evidence_is_relative_to_the_best_and_neutral_without_a_score() -> None:
    errors = torch.tensor([[[1.0, 2.0], [2.0, 2.0], [torch.nan, torch.nan], [0.1, 0.1]]])
    offered = torch.tensor([[True, True, True, False]])
    relative, best = evidence(errors, offered)
    assert relative[0, 0].tolist() == [0.0, 0.0]
    assert relative[0, 1, 0].item() == pytest.approx(0.6931, abs=1e-3)
    assert relative[0, 2, 0].item() == pytest.approx(0.3466, abs=1e-3)
    assert best[0].tolist() == [1.0, 2.0]
    nothing, none = evidence(torch.full_like(errors, torch.nan), offered)
    assert (nothing == 0).all()
    assert none.isnan().all()


def test_changes_go_on_from_the_last_value() -> None:
    line = torch.arange(100.0)[None] + 0.01 * torch.randn(1, 100, generator=torch.Generator().manual_seed(6))
    fit = fit_changes(line, torch.ones(1, 100, dtype=torch.bool))
    assert torch.allclose(fit.forecast(line, 5)[0], line[0, -1] + torch.arange(1.0, 6.0), atol=0.6)


def _hindcast_of_days(rise: Tensor, noise: float, seed: int) -> Tensor:
    """Hindcast [H] of fine rows of ten minutes that end where day 8 begins; `rise` [7, 144] is added to a level."""
    g = torch.Generator().manual_seed(seed)
    values = (10 + rise.flatten()) * (1 + noise * torch.randn(1008, generator=g))
    return _candidates(context_batch(values[None, :, None], step_ms=600_000)).hindcast[0, 0]


def test_a_job_that_has_not_begun_is_told_by_earlier_days() -> None:
    rise = torch.zeros(7, 144)
    rise[:, 6:9] = 30
    found = _hindcast_of_days(rise, 0.05, seed=6)
    assert found[6:9].min() > 1.8, "e to the 1.8 is six times the error"
    assert found[:6].max() < 1
    assert found[10:].max() < 1


def test_what_happened_on_one_day_only_is_no_season() -> None:
    rise = torch.zeros(7, 144)
    rise[6, 6:9] = 30
    assert _hindcast_of_days(rise, 0.05, seed=7).max() < 1


def test_a_walk_and_a_short_context_have_no_hindcast_to_go_by() -> None:
    walk = autoregressive(8, 1008, 0.9999, seed=8).float() + 100
    assert _candidates(context_batch(walk, step_ms=600_000)).hindcast.mean() < 0.25
    assert (_candidates(context_batch(walk[:, -288:], step_ms=600_000)).hindcast == 0).all(), "one pair of days"
    assert (_candidates(context_batch(walk[:, -128:])).hindcast == 0).all()
