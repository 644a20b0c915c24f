"""Couplings over the horizon: each direction undoes the other, the log-determinant is the Jacobian's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.network.law import NUM_COEFFICIENTS, from_noise, to_noise, tree

HORIZONS = [1, 2, 7, 12, 13, 48, 64]


def _coefficients(horizon: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(3, horizon, NUM_COEFFICIENTS, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_directions_undo_each_other(horizon: int) -> None:
    where, coefficients = tree(horizon), _coefficients(horizon)
    z = torch.randn(3, horizon, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    e = from_noise(z, coefficients, where)
    assert torch.allclose(to_noise(e, coefficients, where)[0], z, atol=1e-7)


@pytest.mark.parametrize("horizon", [1, 7, 12])
def test_log_determinant_is_the_jacobians(horizon: int) -> None:
    where, coefficients = tree(horizon), _coefficients(horizon, 2)[:1]
    e = torch.randn(1, horizon, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: to_noise(x[None], coefficients, where)[0][0], e[0])
    assert torch.allclose(to_noise(e, coefficients, where)[1].sum(), jacobian.slogdet().logabsdet, atol=1e-8)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_every_step_is_drawn_once_after_those_around_it(horizon: int) -> None:
    where = tree(horizon)
    done = {0}
    for layer in where.layers:
        for k in layer.tolist():
            assert int(where.left[k]) in done
            assert int(where.right[k]) in done
        done |= {k + 1 for k in layer.tolist()}
    assert sorted(done) == list(range(horizon + 1))


def test_first_of_all_is_standard_normal() -> None:
    where = tree(12)
    z = torch.randn(3, 12, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert torch.equal(from_noise(z, _coefficients(12), where)[:, 7], z[:, 7])
