"""The compiled loops of the network against its tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.network.atoms import atoms
from model.network.candidates import candidates
from model.network.candidates_kernel import _levinson
from model.network.features import extract_features
from model.network.inputs import ScaledContext, normalize_context, seasons
from model.network.law import JointLaw, Marginal, Spline, knot_positions
from model.network.law_kernel import _log_above, mixed_values, mixture_table, table_room
from model.numerics import exponential
from tests.model.batches import context_batch
from tests.model.network.untrained import small_network


@st.composite
def contexts(draw: st.DrawFn, *kinds: str) -> ScaledContext:
    """Walks, noise, hops between levels, and gaps; lengths that fit all, some or none of the autoregressions."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, length, n = draw(st.integers(1, 3)), draw(st.sampled_from([20, 97, 128, 300, 1200])), draw(st.integers(1, 4))
    values = torch.randn(rows, length, n, generator=g)
    kind = draw(st.sampled_from(kinds))
    if kind == "walk":
        values = values.cumsum(1)
    elif kind == "hops":
        values = torch.randint(0, 4, values.shape, generator=g) + 1e-3 * values
    values[torch.rand(values.shape, generator=g) < draw(st.sampled_from([0.0, 0.05, 0.5]))] = torch.nan
    return normalize_context(context_batch(values * draw(st.sampled_from([1e-3, 1.0, 1e6]))))


@settings(max_examples=40, deadline=None)
@given(contexts("noise", "walk"), st.sampled_from([1, 12, 64]))
def test_candidates(context: ScaledContext, horizon: int) -> None:
    """Not of hops between a few levels: there many stretches are as near as each other but for a last bit."""
    ours, reference = (candidates(context, None, horizon, loops=loops) for loops in (True, False))
    assert torch.equal(ours.offered, reference.offered)
    assert torch.allclose(ours.z, reference.z, atol=2e-3), "single precision, fed back 64 times"
    assert torch.allclose(ours.scales, reference.scales, rtol=1e-3)
    assert torch.allclose(ours.evidence, reference.evidence, atol=1e-2)


@settings(max_examples=60, deadline=None)
@given(contexts("noise", "walk", "hops"), st.sampled_from([1, 6, 12]))
def test_atoms(context: ScaledContext, count: int) -> None:
    ours, reference = (atoms(context, count, loops=loops) for loops in (True, False))
    assert torch.equal(ours.valid, reference.valid)
    assert torch.equal(ours.z[ours.valid], reference.z[reference.valid])
    assert torch.allclose(ours.features[ours.valid], reference.features[reference.valid], atol=1e-5)
    assert torch.allclose(ours.width, reference.width)
    assert torch.allclose(ours.summary, reference.summary, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000), horizon=st.integers(1, 64), paths=st.sampled_from([1, 15, 16, 100]),
    mass=st.sampled_from([-9.0, 0.0, 3.0]),
)  # fmt: skip
@example(seed=715, horizon=35, paths=100, mass=-9.0)
def test_samples(seed: int, horizon: int, paths: int, mass: float) -> None:
    g = torch.Generator().manual_seed(seed)
    hops = torch.randint(0, 5, (3, 128, 3), generator=g) + 0.1 * torch.randn(3, 128, 3, generator=g)
    network = small_network(seed)
    with torch.no_grad():
        list(network.head.parameters())[-1][-6] = mass
        law = network(extract_features(context_batch(hops), network.spec, horizon), horizon)
    assert bool(law.marginal.active().any()) == (mass > -9)
    noise = torch.randn(3, 3, horizon, paths, generator=g)
    ours, reference = (law.sample(noise, loops=loops) for loops in (True, False))
    scale = law.context.scale[..., None, None]
    apart, in_order = (ours - reference).abs() / scale, (ours.sort(-1)[0] - reference.sort(-1)[0]).abs() / scale
    smooth = (law.marginal.mass == 0) | ~law.marginal.active()[..., None]
    assert in_order[smooth].max() < 1e-3 if smooth.any() else True
    # Only paths that are as good as equal in a cell come in either order, and then take each other's slice of its law.
    for b, n, h, s in ((apart > 1e-3) & smooth[..., None]).nonzero().tolist():
        in_cell = law.normals(noise)[b, n, h]
        assert (in_cell - in_cell[s]).abs().sort()[0][1] < 1e-5
    # On the edge of an atom the distribution function is flat or steep: there a last bit decides between two values.
    assert apart.quantile(0.98) < 1e-2


PARTS = ["spline.y", "spline.slope", "mass", "atoms", "weights", "width", "coupling", "mixing", "center", "scale"]


@pytest.mark.parametrize("rubbish", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", [*PARTS, "noise", "spline.x"])
def test_a_row_whose_law_is_no_number_has_no_paths_and_disturbs_no_other(part: str, rubbish: float) -> None:
    network, g = small_network(3), torch.Generator().manual_seed(3)
    with torch.no_grad():
        law = network(extract_features(context_batch(torch.randn(3, 128, 2, generator=g)), network.spec, 8), 8)
    noise = torch.randn(3, 2, 8, 100, generator=g)
    clean = law.sample(noise)
    m, units = law.marginal, law.context
    law_parts = (m.spline.y, m.spline.slope, m.mass, m.atoms, m.weights, m.width, law.coupling, law.mixing)
    told = dict(zip(PARTS, (*law_parts, units.center, units.scale), strict=True))
    told |= {"noise": noise, "spline.x": m.spline.x}
    spoiled = told[part].clone()
    spoiled[1].flatten()[0:1].fill_(rubbish) if spoiled.dim() > 1 else spoiled[1:2].fill_(rubbish)
    told[part] = spoiled
    marginal = Marginal(
        Spline(told["spline.x"], told["spline.y"], told["spline.slope"]),
        told["mass"], told["atoms"], told["weights"], told["width"],
    )  # fmt: skip
    context = replace(units, center=told["center"], scale=told["scale"])
    paths = JointLaw(marginal, told["coupling"], told["mixing"], context).sample(told["noise"])
    sound = [] if part == "spline.x" else [0, 2]
    assert torch.equal(paths[sound], clean[sound])
    assert paths[[r for r in range(3) if r not in sound]].isnan().all()


def test_whole_forecasts_without_a_season_and_with() -> None:
    day = torch.sin(torch.arange(1008.0) * 2 * torch.pi / 144)[None, :, None] * 5 + 20
    values = torch.randn(1, 128, 1, generator=torch.Generator().manual_seed(1)) + 20
    for coarse in (None, day):
        batch = context_batch(values, coarse=coarse)
        batch = batch if coarse is not None else replace(batch, coarse=batch.coarse[..., :0])
        network = small_network(1)
        ours, reference = (extract_features(batch, network.spec, loops=loops) for loops in (True, False))
        assert torch.allclose(ours.tokens, reference.tokens, atol=1e-3)
        observed = seasons(batch, ours.context, 64).observed
        assert bool(observed.any()) == (coarse is not None)


def test_a_table_of_quantiles_inverts_its_distribution() -> None:
    """A uniform law between two atoms: what falls below each value is the level asked for."""
    x = knot_positions().numpy()
    y = np.linspace(-2, 2, len(x), dtype=np.float32)
    slope = np.gradient(y, x).astype(np.float32)
    at, weights = np.array([-1.0, 1.0], np.float32), np.array([0.25, 0.75], np.float32)
    table = table_room(2)
    mixture_table(x, y, slope, 0.4, at, weights, 0.01, table)
    assert (np.diff(table.points) >= 0).all()
    assert (np.diff(table.level) >= 0).all()
    drawn, normals = np.empty(20_000), np.sort(np.random.default_rng(2).standard_normal(20_000))
    mixed_values(table, normals, drawn)
    shares = [np.mean(np.abs(drawn - a) < 0.0101) for a in at]
    assert np.allclose(shares, [0.1, 0.3], atol=0.02)  # and what the smooth part puts there, .3 % each
    assert (np.diff(drawn) >= 0).all()


@given(st.floats(0, 15), st.floats(-4, 4))
def test_series_of_logarithm_and_exponential(x: float, y: float) -> None:
    assert abs(_log_above(x) - np.log1p(x)) < 1e-8
    assert abs(exponential(y) / np.exp(y) - 1) < 1e-7


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 64))
def test_levinson_solves_the_toeplitz_system(seed: int, order: int) -> None:
    series = np.random.default_rng(seed).standard_normal(300).cumsum()
    series -= series.mean()
    covariance = np.array([series[lag:] @ series[: len(series) - lag] for lag in range(order + 1)])
    diagonal = 1.003 * covariance[0]
    matrix = covariance[np.abs(np.subtract.outer(np.arange(order), np.arange(order)))]
    np.fill_diagonal(matrix, diagonal)
    found = np.empty(order)
    _levinson(covariance, diagonal, found)
    assert np.allclose(matrix @ found, covariance[1:], atol=1e-7 * covariance[0])
