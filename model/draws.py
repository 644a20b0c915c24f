"""Random draws that belong to a row: fixed by its workload, origin and seed, never by the batch around it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.row_draws import GOLDEN, MIX_A, MIX_B


def row_seed(item_id: str, origin_ts_ms: int, seed: int) -> int:
    """64 bits that fix the draws of one row."""
    text = "\x1f".join((item_id, str(origin_ts_ms), str(seed)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_keys(item_ids: Sequence[str], origin_ts_ms: Tensor, seed: int) -> NDArray[np.uint64]:
    """Seeds of rows, [B]."""
    origins = origin_ts_ms.tolist()
    return np.array([row_seed(i, o, seed) for i, o in zip(item_ids, origins, strict=True)], dtype=np.uint64)


def row_uniforms(item_ids: Sequence[str], origin_ts_ms: Tensor, seed: int, count: int) -> NDArray[np.float64]:
    """Uniforms in [0, 1), [B, count]: SplitMix64 streams, so that element k of a row depends on the row alone.

    Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    keys = row_keys(item_ids, origin_ts_ms, seed)
    with np.errstate(over="ignore"):
        state = keys[:, None] + GOLDEN * np.arange(1, count + 1, dtype=np.uint64)[None, :]  # [B, count]
        state = (state ^ (state >> np.uint64(30))) * MIX_A
        state = (state ^ (state >> np.uint64(27))) * MIX_B
    state = state ^ (state >> np.uint64(31))
    uniforms: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


def window_draws(uniforms: NDArray[np.float64], weights: Tensor, num_paths: int) -> Tensor:
    """Which residual window each path takes: a systematic sample in random order.

    A systematic sample takes window w about `num_paths * weight_w` times, so that few paths already stand for all
    windows; the random order keeps the paths exchangeable.

    Args:
        uniforms: [B, num_paths + 1].
        weights: [B, W] non-negative, each row with a positive sum.

    Returns:
        int64 [B, num_paths] in [0, W), on the device of `weights`.
    """
    mass = weights.detach().cpu().to(torch.float64).cumsum(-1)
    mass = (mass / mass[:, -1:]).contiguous()
    ladder = (np.arange(num_paths)[None, :] + uniforms[:, :1]) / num_paths  # [B, S]
    last = (weights.detach().cpu() > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # the last window with any weight
    chosen = torch.searchsorted(mass, torch.from_numpy(ladder), right=True).minimum(last)
    order = torch.from_numpy(np.argsort(uniforms[:, 1:], axis=1, kind="stable"))
    return chosen.gather(1, order).to(weights.device)
