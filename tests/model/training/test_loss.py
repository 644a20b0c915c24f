"""The atoms' part of the loss is the gain in density of the mixture over the smooth law alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from model.contract import ContextBatch
from model.network.features import extract_features
from model.network.law import Spline
from model.training.loss import losses
from model.training.synthetic import draw_example
from tests.model.batches import context_batch
from tests.model.network.untrained import SMALL, small_network


def test_atoms_earn_what_the_mixture_gains_in_density() -> None:
    example = draw_example(2, 96)
    features = extract_features(example.batch, SMALL)
    normal = torch.distributions.Normal(0, 1)
    with torch.no_grad():
        law = small_network()(features, 6)
        context, marginal = law.context, law.marginal
        y = (example.target[:, :6].transpose(1, 2).double() - context.center[..., None]) / context.scale[..., None]
        e, slope = marginal.to_normal(y.float())  # of the mixture
        smooth, smooth_slope = marginal.spline.inverse(y.float())
        gain = normal.log_prob(e) + slope - normal.log_prob(smooth) - smooth_slope  # [B, N, H]
        known = example.observed[:, :6].transpose(1, 2) & context.moving[..., None]
        # What the two bound differently (levels in the far tails, atoms a thousand times as dense) is left out.
        thin = normal.log_prob(smooth) + smooth_slope + (2 * marginal.width[..., None]).log()
        known &= (thin > -6.9) & (e.abs() < 4) & marginal.active()[..., None]
        part = losses(law, features, example.target[:, :6], known.transpose(1, 2), torch.arange(6))["atoms"]
    scored = known & torch.isin(torch.arange(6), torch.tensor([0, 3]))  # every third of the steps
    assert scored.sum() > 40
    assert gain[scored].abs().max() > 0.1
    torch.testing.assert_close(part, -gain[scored].mean(), rtol=1e-3, atol=1e-3)


def test_a_hopping_channel_teaches_mass_and_a_smooth_one_takes_it_away() -> None:
    torch.manual_seed(3)
    network = small_network()
    example = draw_example(1, 12)
    values = torch.randn(example.batch.values.shape[0], 200, 2).cumsum(1)
    values[..., 1] = torch.randint(0, 3, values.shape[:2]).float()  # one of three levels
    batch = _with_values(example.batch, values[:, :128])
    features = extract_features(batch, SMALL)
    law = network(features, 8)
    law.marginal.mass.retain_grad()
    target = values[:, 128:136]
    losses(law, features, target, torch.ones_like(target, dtype=torch.bool), torch.arange(8))["atoms"].backward()
    grad = law.marginal.mass.grad
    assert grad is not None
    assert float(grad[:, 1, ::3].mean()) < 0 < float(grad[:, 0, ::3].mean())


def test_a_job_far_above_the_recent_noise_is_learned_at_its_height() -> None:
    day_row = torch.arange(7 * 144 + 8) % 144
    values = (10 + 100.0 * (day_row == 2) + 0.1 * torch.randn(len(day_row)))[None, :, None]
    features = extract_features(context_batch(values[:, :1008], step_ms=600_000), SMALL)
    target, step = values[:, 1008:], torch.tensor([2])
    with torch.no_grad():
        law = small_network()(features, 8)
        context, m = law.context, law.marginal
        truth = ((target.transpose(1, 2) - context.center[..., None]) / context.scale[..., None]).float()
        assert truth[0, 0, 2] > 50

        def pinball(center: torch.Tensor) -> float:
            spline = Spline(m.spline.x, center[..., None] + m.spline.x, torch.ones_like(m.spline.slope))
            some = replace(law, marginal=replace(m, spline=spline, mass=torch.zeros_like(m.mass)))
            return float(losses(some, features, target, torch.ones_like(target, dtype=torch.bool), step)["pinball"])

        assert 5 * pinball(truth) < pinball(truth.clamp(max=30))


def _with_values(batch: ContextBatch, values: torch.Tensor) -> ContextBatch:
    b, _, n = values.shape
    return replace(
        batch,
        values=values,
        observed=torch.ones_like(values, dtype=torch.bool),
        coarse=torch.zeros(b, batch.coarse.shape[1], 0),
        coarse_observed=torch.zeros(b, batch.coarse.shape[1], 0, dtype=torch.bool),
        levels=torch.tensor([1, 2]),
        indicators=("demand", "device"),
        lower=torch.full((n,), -torch.inf),
        upper=torch.full((n,), torch.inf),
    )
