"""Attention over indicators that follows their hierarchy: demand, then engine, then device.

Level l sees its own tokens and what level l-1 passed on, never a later one: demand causes what the devices show, and a
forecast of demand must not change with the number of GPUs that happen to be measured. The published cascade multiplies
queries and keys of other levels by zero, which leaves them a share of the softmax; ours masks them with -inf.
Source: Y. Luo et al., arXiv 2408.01000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

# Products whose bits for a row do not depend on the rows beside it.
#
# A matrix product of another height may round differently, the same row at another place of it too, and so may the same
# numbers at another alignment in memory: every row is multiplied for itself, from an aligned beginning.


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


def visible(levels: Tensor, kind: Literal["cascade", "flat", "none"]) -> Tensor:
    """bool [T, T]: query token (row) may attend key token (column); a token always sees itself."""
    own: Tensor = torch.eye(levels.shape[0], dtype=torch.bool, device=levels.device)
    if kind == "none":
        return own
    if kind == "flat":
        return torch.ones_like(own)
    rank = ranks(levels)
    gap = rank[:, None] - rank[None, :]
    seen: Tensor = own | (gap == 0) | (gap == 1)
    return seen


def ranks(levels: Tensor) -> Tensor:
    """How many levels come before each one's, int64 [T]: levels may have holes, what counts is which comes before."""
    alike = levels[:, None] == levels
    first = ~alike.tril(-1).any(1)
    return ((levels < levels[:, None]) & first).sum(1)


class IndicatorAttention(nn.Module):
    """One pre-norm layer: masked attention over tokens, then a gated residual block."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self._heads = num_heads
        self.norm = nn.LayerNorm(width)
        self.qkv = RowLinear(width, 3 * width)
        self.out = RowLinear(width, width)
        self.block = nn.Sequential(
            nn.LayerNorm(width), RowLinear(width, 2 * width), nn.GELU(), RowLinear(2 * width, width)
        )
        with torch.no_grad():  # starts as the identity
            for parameter in (*self.out.parameters(), *self.block[-1].parameters()):
                parameter.zero_()

    def forward(self, tokens: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        """Mix tokens.

        Args:
            tokens: [B, T, D].
            mask: bool [T, T], what `visible` allows.
            present: bool [B, T]; absent tokens are seen by nobody but themselves.
        """
        b, t, d = tokens.shape
        qkv = self.qkv(self.norm(tokens)).view(b, t, 3, self._heads, d // self._heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, heads, T, D / heads] each
        allowed = mask & (present[:, None, :] | torch.eye(t, dtype=torch.bool, device=mask.device))  # [B, T, T]
        k = pad(aligned(k), (0, 0, 0, -t % ALIGNED))
        weights = torch.matmul(aligned(q), k.mT)[..., :t] * (d // self._heads) ** -0.5
        weights = aligned(weights.masked_fill(~allowed[:, None], -torch.inf).softmax(-1))  # [B, heads, T, T']
        v = pad(v, (0, 0, 0, weights.shape[-1] - t))
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(b, t, d)
        tokens = tokens + self.out(mixed)
        out: Tensor = tokens + self.block(tokens)
        return out


# Few numbers on a device without a copy from the host: what is captured as a CUDA graph must not wait for one.


def numbers(values: Sequence[float], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The values [len(values)], each written where it belongs."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])
