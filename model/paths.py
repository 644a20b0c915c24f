"""Joint sample paths from windows: one window index per path, shared by all steps and indicators."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def empty_paths(num_rows: int, num_paths: int, horizon: int, num_indicators: int, device: torch.device) -> Tensor:
    """Uninitialised float32 [B, S, H, N].

    On a CPU the memory comes from numpy, which asks for huge pages: a quarter of the time of first touch.
    """
    shape = (num_rows, num_paths, horizon, num_indicators)
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, dtype=np.float32))
    return torch.empty(shape, dtype=torch.float32, device=device)


def take_paths(windows: Tensor, draws: Tensor, out: Tensor) -> None:
    """Write path s = window draws[s] of its row.

    Args:
        windows: float32 [B, W, H, N], possible futures.
        draws: int64 [B, S].
        out: float32 [B, S, H, N], contiguous.
    """
    b, w, h, n = windows.shape
    flat = (draws + torch.arange(b, device=draws.device)[:, None] * w).reshape(-1)
    table, rows = windows.reshape(b * w, h * n), out.view(b * draws.shape[1], h * n)
    if out.device.type == "cpu":
        # Whole rows at memory speed; mode "clip" writes into `out` without a buffer, and the indices are valid.
        np.take(table.numpy(), flat.numpy(), axis=0, out=rows.numpy(), mode="clip")
    else:
        torch.index_select(table, 0, flat, out=rows)
