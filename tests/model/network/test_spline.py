"""The spline is monotone, its two directions undo each other, and zuko agrees with both."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.network.law import Spline, knot_positions


def _spline(seed: int, cells: tuple[int, ...] = (5,), dtype: torch.dtype = torch.float64) -> Spline:
    g = torch.Generator().manual_seed(seed)
    x = knot_positions().to(dtype)
    steps = torch.rand(*cells, len(x) - 1, generator=g, dtype=dtype) * 3 + 0.05
    start = torch.randn(*cells, 1, generator=g, dtype=dtype)
    y = torch.cat((start, start + steps.cumsum(-1)), dim=-1)
    return Spline(x, y, torch.rand(*cells, len(x), generator=g, dtype=dtype) * 3 + 0.05)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_inverse_undoes_forward_and_rises(seed: int) -> None:
    spline = _spline(seed)
    x = torch.linspace(-6, 6, 400, dtype=torch.float64).expand(5, -1)
    y, log_up = spline.forward(x)
    back, log_down = spline.inverse(y)
    assert torch.allclose(back, x, atol=1e-9)
    assert torch.allclose(log_up, -log_down, atol=1e-8)
    assert (y.diff() > 0).all()


def test_log_slope_is_the_derivative() -> None:
    spline = _spline(3)
    x = torch.randn(5, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    y, log_slope = spline.forward(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(log_slope.exp(), slope, rtol=1e-8)


def test_shared_points_give_what_cells_give() -> None:
    spline = _spline(4, (3, 2))
    points = torch.linspace(-4, 4, 23, dtype=torch.float64)
    assert torch.allclose(spline.at(points), spline.forward(points.expand(3, 2, -1))[0], atol=1e-12)


def test_zuko_agrees() -> None:
    zuko = pytest.importorskip("zuko", reason="zuko, the oracle of the flow's tests, is not installed")
    # zuko's bins come from widths and heights on [-bound, bound], with slope 1 at both ends: build ours of the same.
    widths, heights = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    inner = torch.randn(4, 5, dtype=torch.float64)
    theirs = zuko.transforms.MonotonicRQSTransform(widths, heights, inner, bound=3.0)
    for cell in range(4):
        ours = Spline(theirs.horizontal[cell], theirs.vertical[cell][None], theirs.derivatives[cell][None])
        x = torch.linspace(-2.99, 2.99, 200, dtype=torch.float64)
        y, log_slope = ours.forward(x[None])
        expected, expected_log = theirs.call_and_ladj(x[:, None].expand(-1, 4))
        assert torch.allclose(y[0], expected[:, cell], atol=1e-9)
        assert torch.allclose(log_slope[0], expected_log[:, cell], atol=1e-8)
        assert torch.allclose(ours.inverse(y)[0][0], theirs.inv(expected)[:, cell], atol=1e-8)


def test_knots_that_fall_together_give_numbers_and_gradients() -> None:
    x = knot_positions()
    y = torch.full((1, len(x)), 7.0, requires_grad=True)
    slope = torch.full((1, len(x)), 1e-9, requires_grad=True)
    spline = Spline(x, y, slope)
    values = spline.inverse(torch.full((1, 2), 7.0))
    found = (spline.at(x), spline.value(x[None]), *spline.forward(x[None]), *values)
    for tensor in found:
        assert tensor.isfinite().all()
        gradients = torch.autograd.grad(tensor.sum(), (y, slope), retain_graph=True, allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in gradients)
