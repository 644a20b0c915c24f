"""Layers of the network: attention along the hierarchy of indicators, and products that are exact per row.

The levels are demand, engine and device. Tokens of level l attend to level l and level l-1, never to a later one:
demand causes what the devices show. A forecast of demand must not change with the number of GPUs that are measured.
The published cascade multiplies queries and keys of other levels by zero, which leaves them a share of the softmax.
Here they are masked with -inf.
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
    """The tensor with its last axis padded by zeros to a multiple of 16, which changes no sum over it."""
    missing = -x.shape[-1] % ALIGNED
    return pad(x, (0, missing)) if missing else x.contiguous()


class RowLinear(nn.Linear):
    """`nn.Linear`, which without gradients on a CPU multiplies row by row of the first axis."""

    _cache: tuple[Tensor, int, Tensor] | None = None  # the weight, its version, and it aligned and turned

    def forward(self, x: Tensor) -> Tensor:
        """The products [B, ..., out].

        Args:
            x: [B, ..., in].
        """
        if torch.is_grad_enabled() or x.device.type != "cpu" or x.dim() < 2:
            return linear(x, self.weight, self.bias)
        b, inside = x.shape[0], x.shape[-1]
        rows = aligned(x).reshape(b, -1, inside + -inside % ALIGNED)
        out = torch.bmm(rows, self._transposed_weight().expand(b, -1, -1))[..., : self.out_features] + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the cached weight: the version counter of a copied weight starts anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_cache"}

    def _transposed_weight(self) -> Tensor:
        """The weight transposed and aligned [in', out'], cached per version: the copy costs as much as a product."""
        weight, cached = self.weight, self._cache
        version = weight._version  # noqa: SLF001 - nothing else tells of changes in place
        if cached is None or cached[0] is not weight or cached[1] != version:
            cached = self._cache = (weight, version, aligned(aligned(weight.detach()).t()))
        return cached[2]


def visible(levels: Tensor, kind: Literal["cascade", "flat", "none"]) -> Tensor:
    """Mask bool [T, T]: whether the query token (row) may attend to the key token (column); each attends to itself."""
    own: Tensor = torch.eye(levels.shape[0], dtype=torch.bool, device=levels.device)
    if kind == "none":
        return own
    if kind == "flat":
        return torch.ones_like(own)
    rank = ranks(levels)
    gap = rank[:, None] - rank[None, :]
    mask: Tensor = own | (gap == 0) | (gap == 1)
    return mask


def ranks(levels: Tensor) -> Tensor:
    """Rank of each token's level among the distinct levels, int64 [T].

    >>> ranks(torch.tensor([1, 3, 1, 7])).tolist()
    [0, 1, 0, 2]
    """
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
        """The tokens after attention and the residual block [B, T, D].

        Args:
            tokens: [B, T, D].
            mask: bool [T, T], the result of `visible`.
            present: bool [B, T]; no other token attends to one that is absent.
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
    """A tensor of the values, filled on the device itself."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])
