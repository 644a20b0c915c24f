"""The joint law: exact density both ways, in the row's own units."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from model.network.features import extract_features
from model.network.law import JointLaw, Marginal, Spline, knot_positions, stratified, tree
from tests.model.batches import autoregressive, context_batch
from tests.model.network.untrained import small_network


def _law(horizon: int = 6, indicators: int = 3, seed: int = 0, atom_mass: float | None = None) -> JointLaw:
    values = autoregressive(2, 200, 0.8, seed, indicators) * torch.tensor([1.0, 50.0, 0.01])[:indicators] + 5
    batch = context_batch(values)
    network = small_network(seed)
    with torch.no_grad():
        if atom_mass is not None:
            network.head[-1].bias[-6] = math.log(atom_mass / (1 - atom_mass))
        return network(extract_features(batch, network.spec, horizon), horizon)


def _double(law: JointLaw) -> JointLaw:
    m = law.marginal
    spline = Spline(m.spline.x.double(), m.spline.y.double(), m.spline.slope.double())
    marginal = Marginal(spline, m.mass.double(), m.atoms.double(), m.weights.double(), m.width.double())
    return JointLaw(marginal, law.coupling.double(), law.mixing.double(), law.context)


def _first_path(law: JointLaw, noise: Tensor) -> Tensor:
    return law.sample(noise, loops=False)[0, ..., 0]


def test_density_is_that_of_the_samples_by_the_jacobian() -> None:
    law = _double(_law(atom_mass=1e-4))
    noise = torch.randn(2, 3, 6, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    values = law.sample(noise, loops=False)
    jacobian = torch.autograd.functional.jacobian(lambda z: law.sample(z, loops=False)[0, ..., 0], noise)[
        ..., 0
    ]  # [N, H, B, N, H]
    assert (jacobian[:, :, 1] == 0).all(), "rows are independent"
    log_base = -0.5 * noise[0].square().sum() - 9 * math.log(2 * math.pi)
    expected = log_base - jacobian[:, :, 0].reshape(18, 18).slogdet().logabsdet
    found = law.log_prob(values[..., 0].transpose(1, 2))
    assert torch.allclose(found[0], expected, atol=1e-6)


def test_noise_comes_back_from_samples() -> None:
    law = _double(_law(horizon=13, atom_mass=1e-4))
    noise = torch.randn(2, 3, 13, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    values = law.sample(noise, loops=False)
    for path in range(5):
        z = (values[..., path] - law.context.center[..., None]) / law.context.scale[..., None]
        back = law.decorrelate(law.marginal.to_normal(z)[0])[0]
        assert torch.allclose(back, noise[..., path], atol=1e-6)


@pytest.mark.parametrize("mass", [1e-4, 0.6])
def test_one_cell_integrates_to_one(mass: float) -> None:
    law = _law(horizon=1, indicators=1, atom_mass=mass)
    assert bool(law.marginal.active().any()) == (mass > 0.5)
    y = torch.linspace(-400, 400, 800_001, dtype=torch.float64)
    grid = y * float(law.context.scale[0, 0]) * 0.05
    with torch.no_grad():
        cell = JointLaw(
            Marginal(
                Spline(law.marginal.spline.x, law.marginal.spline.y[:1], law.marginal.spline.slope[:1]),
                law.marginal.mass[:1], law.marginal.atoms[:1], law.marginal.weights[:1], law.marginal.width[:1],
            ),
            law.coupling[:1], law.mixing[:1], law.context,
        )  # fmt: skip
        z = ((grid - law.context.center[0, 0]) / law.context.scale[0, 0]).float()
        e, log_slope = _wide(cell, z.numel()).to_normal(z[:, None, None])
        density = torch.exp(log_slope - 0.5 * e.square() - 0.5 * math.log(2 * math.pi)) / law.context.scale[0, 0]
    total = torch.trapezoid(density[:, 0, 0].double(), grid)
    assert abs(float(total) - 1) < 2e-3


def _wide(law: JointLaw, count: int) -> Marginal:
    m = law.marginal
    return Marginal(
        Spline(m.spline.x, m.spline.y.expand(count, -1, -1, -1), m.spline.slope.expand(count, -1, -1, -1)),
        m.mass.expand(count, -1, -1), m.atoms.expand(count, -1, -1), m.weights.expand(count, -1, -1),
        m.width.expand(count, -1),
    )  # fmt: skip


def test_atoms_hold_their_mass() -> None:
    x = knot_positions()
    spline = Spline(x, x.expand(1, 1, 1, -1).contiguous(), torch.ones(1, 1, 1, len(x)))
    marginal = Marginal(
        spline, torch.full((1, 1, 1), 0.5), torch.tensor([[[4.0, -2.0]]]), torch.tensor([[[0.8, 0.2]]]),
        torch.full((1, 1), 0.01),
    )  # fmt: skip
    e = torch.special.ndtri((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000).float()
    values = marginal.from_normal(e[None, None, None])[0, 0, 0]
    near = [((values - a).abs() < 0.011).float().mean().item() for a in (4.0, -2.0)]
    assert near[0] == pytest.approx(0.4, abs=0.01)
    assert near[1] == pytest.approx(0.1 + 0.5 * 0.0012, abs=0.01)
    assert (values.diff() >= 0).all()


def test_scaling_a_series_scales_its_density() -> None:
    torch.manual_seed(0)
    values = autoregressive(2, 200, 0.8, 3, 2)
    network = small_network()
    future = values[:, -6:]
    plain, large = context_batch(values), context_batch(values * 1000)
    with torch.no_grad():
        a = network(extract_features(plain, network.spec, 6), 6).log_prob(future)
        b = network(extract_features(large, network.spec, 6), 6).log_prob(future * 1000)
    assert torch.allclose(a - 12 * math.log(1000), b, atol=2e-2)


def test_mixing_leaves_each_indicator_standard() -> None:
    law = _law(horizon=12)
    covariance = law.mixing @ law.mixing.mT
    assert torch.allclose(covariance.diagonal(dim1=-2, dim2=-1), torch.ones(2, 7, 3), atol=1e-5)
    assert tree(12).stride.max() < 7


def test_stratified_paths_have_one_value_in_each_slice_in_the_order_they_had() -> None:
    e = torch.randn(200, 3, 100, generator=torch.Generator().manual_seed(2))
    paths = stratified(e)
    slices = (torch.special.ndtr(paths.double()) * 100).sort(dim=-1).values
    middle = torch.arange(100) + 0.5
    assert ((slices - middle).abs() < 0.51).all()
    assert paths.mean(-1).abs().max() < 1e-3
    assert torch.equal(paths.argsort(dim=-1), e.argsort(dim=-1))
    within = (slices - middle)[..., :50].mean(-1).flatten() + 0.5  # where in its slices a cell lies: anywhere alike
    assert within.sort().values.sub((torch.arange(600) + 0.5) / 600).abs().max() < 0.08
    assert torch.equal(stratified(e[..., :15]), e[..., :15])


def test_stratified_paths_know_the_marginal_better_than_independent_ones() -> None:
    e = torch.randn(500, 32, generator=torch.Generator().manual_seed(3))
    below = [(paths < 0.7).float().mean(-1).std() for paths in (stratified(e), e)]
    assert below[0] < 0.2 * below[1]
