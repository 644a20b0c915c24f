"""Products row by row: those of a linear layer, of the weight as it is now."""

from __future__ import annotations

import copy

import torch

from model.network.layers import RowLinear


def _product(layer: RowLinear, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = layer(x)
    return out


def test_a_layer_multiplies_by_the_weight_that_it_has_now() -> None:
    torch.manual_seed(3)
    layer, other, x = RowLinear(5, 7), RowLinear(5, 7), torch.randn(3, 2, 5)

    def right(one: RowLinear) -> bool:
        return torch.allclose(_product(one, x), torch.nn.functional.linear(x, one.weight, one.bias), atol=1e-6)

    assert right(layer)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert right(layer)
    layer.load_state_dict(other.state_dict())
    assert right(layer)
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 3)
    assert right(layer)


def test_a_copy_remembers_nothing_of_the_weight_it_was_copied_with() -> None:
    """A copy counts the changes of its weight from 0 again, up to the count that the original had."""
    torch.manual_seed(4)
    for changes in range(4):
        layer, x = RowLinear(5, 7), torch.randn(3, 5)
        with torch.no_grad():
            for _ in range(changes):
                layer.weight.mul_(1.5)
        _product(layer, x)
        copied = copy.deepcopy(layer)
        with torch.no_grad():
            for _ in range(changes + 1):
                copied.weight.add_(1)
                expected = torch.nn.functional.linear(x, copied.weight, copied.bias)
                assert torch.allclose(_product(copied, x), expected, atol=1e-6)
