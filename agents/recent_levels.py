"""What a plan rests on when no forecaster is trusted: the load of the newest slots, each of them taken to go on.

Such paths foresee nothing, but they follow the load up and down, and their spread is that of the slots themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from streams.window_table import Window

_SLOTS: Final = 32


def recent_levels(window: Window, columns: Sequence[int], num_paths: int, horizon: int) -> Tensor | None:
    """Constant paths, float32 [S, H, C] of these columns; None where the first of them was never observed.

    A value that a slot lacks is the one before it; the newest slots come again where there are more paths.
    """
    seen = np.flatnonzero(window.observed[:, columns[0]])[-_SLOTS:]
    if not len(seen):
        return None
    known = np.where(window.observed[:, columns], window.values[:, columns], np.nan)
    for at in range(1, len(known)):
        known[at] = np.where(np.isnan(known[at]), known[at - 1], known[at])
    levels = np.nan_to_num(known[seen[::-1]]).astype(np.float32)  # newest first
    chosen = torch.from_numpy(levels)[torch.arange(num_paths) % len(levels)]
    return chosen[:, None].expand(-1, horizon, -1)
