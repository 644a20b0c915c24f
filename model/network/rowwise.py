"""Products whose bits for a row do not depend on the rows beside it.

A matrix product of another height may round differently, the same row at another place of it too, and so may the same
numbers at another alignment in memory: every row is multiplied for itself, from an aligned beginning.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

ALIGNED = 16  # float32 values in 64 bytes


def aligned(x: Tensor) -> Tensor:
    """Zeros behind the last axis, up to a multiple of 16: what is summed over stays the same."""
    missing = -x.shape[-1] % ALIGNED
    return pad(x, (0, missing)) if missing else x.contiguous()


class RowLinear(nn.Linear):
    """`nn.Linear`, which without gradients on a CPU multiplies row by row of the first axis."""

    _columns: tuple[Tensor, int, Tensor] | None = None  # the weight, its version, and it aligned and turned

    def forward(self, x: Tensor) -> Tensor:
        """Args: x [B, ..., in]."""
        if torch.is_grad_enabled() or x.device.type != "cpu" or x.dim() < 2:
            return linear(x, self.weight, self.bias)
        b, inside = x.shape[0], x.shape[-1]
        rows = aligned(x).reshape(b, -1, inside + -inside % ALIGNED)
        out = torch.bmm(rows, self._turned().expand(b, -1, -1))[..., : self.out_features] + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own: its weight counts its changes anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}

    def _turned(self) -> Tensor:
        """[in', out'], made once for as long as the weight stays what it is: copying it costs what multiplying does."""
        weight, known = self.weight, self._columns
        version = weight._version  # noqa: SLF001 - nothing else tells of changes in place
        if known is None or known[0] is not weight or known[1] != version:
            known = self._columns = (weight, version, aligned(aligned(weight.detach()).t()))
        return known[2]
