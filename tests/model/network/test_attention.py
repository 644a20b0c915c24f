"""The hierarchy's mask: a level sees itself and the level before, exactly."""

from __future__ import annotations

import torch

from model.network.layers import IndicatorAttention, visible


def _layer() -> IndicatorAttention:
    torch.manual_seed(0)
    layer = IndicatorAttention(16, 4)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def test_levels_see_themselves_and_the_one_before() -> None:
    mask = visible(torch.tensor([1, 1, 2, 3]), "cascade")
    assert mask.tolist() == [[True, True, False, False]] * 2 + [[True, True, True, False], [False, False, True, True]]


def test_a_hole_in_the_levels_breaks_no_chain() -> None:
    assert visible(torch.tensor([1, 3]), "cascade").tolist() == [[True, False], [True, True]]


def test_gradient_toward_later_levels_is_exactly_zero() -> None:
    levels = torch.tensor([1, 1, 2, 3, 3])
    tokens = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1), requires_grad=True)
    first, second = _layer(), _layer()
    mask, present = visible(levels, "cascade"), torch.ones(2, 5, dtype=torch.bool)
    out = second(first(tokens, mask, present), mask, present)
    for level in (1, 2):
        (gradient,) = torch.autograd.grad(out[:, levels == level].sum(), tokens, retain_graph=True)
        assert (gradient[:, levels > level] == 0).all()
        assert (gradient[:, levels <= level] != 0).any()
    (gradient,) = torch.autograd.grad(out[:, levels == 3].sum(), tokens)
    assert (gradient[:, levels == 1] != 0).any(), "two layers carry demand to the devices"


def test_absent_tokens_change_nothing() -> None:
    layer, mask = _layer(), visible(torch.tensor([1, 1, 2]), "cascade")
    tokens = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(2))
    present = torch.tensor([[True, False, True]])
    other = tokens.clone()
    other[:, 1] = 100.0
    assert torch.equal(layer(tokens, mask, present)[:, [0, 2]], layer(other, mask, present)[:, [0, 2]])


def test_equal_levels_may_be_swapped() -> None:
    layer, mask = _layer(), visible(torch.tensor([1, 1, 2, 2]), "cascade")
    tokens = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(3))
    present, order = torch.ones(1, 4, dtype=torch.bool), [1, 0, 3, 2]
    swapped = layer(tokens[:, order], mask, present)
    assert torch.allclose(swapped, layer(tokens, mask, present)[:, order], atol=1e-6)
