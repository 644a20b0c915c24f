"""What a plan rests on when no forecaster is trusted: the load of the newest slots, each of them taken to go on.

Such paths foresee nothing, but they follow the load up and down, and their spread is that of the slots themselves.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from streams.windows.table import Window

_SLOTS: Final = 32
_ARRIVALS: Final = 0


def recent_levels(window: Window, column: int, num_paths: int) -> Tensor | None:
    """The levels of constant paths of a column, float32 [S]; None where arrivals were never observed.

    They are of slots in which arrivals were; a value that such a slot lacks is the one before it. The newest slots come
    again where there are more paths.
    """
    seen = np.flatnonzero(window.observed[:, _ARRIVALS])[-_SLOTS:]
    if not len(seen):
        return None
    known = np.where(window.observed[:, column], window.values[:, column], np.nan)
    for at in range(1, len(known)):
        known[at] = known[at - 1] if np.isnan(known[at]) else known[at]
    levels = np.nan_to_num(known[seen[::-1]]).astype(np.float32)  # newest first
    return torch.from_numpy(levels)[torch.arange(num_paths) % len(levels)]
