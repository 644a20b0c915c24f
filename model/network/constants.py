"""Few numbers on a device without a copy from the host: what is captured as a CUDA graph must not wait for one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def numbers(values: Sequence[float], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """The values [len(values)], each written where it belongs."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])
