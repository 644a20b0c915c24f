"""Examples from recorded telemetry: what adapts a network to a user's own series, and what validates it there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from model.contract import COARSE_ROWS, ContextBatch
from model.network.spec import MAX_HORIZON
from model.training.synthetic.windows import Example

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """One workload's recorded rows.

    Attributes:
        item_id: workload.
        start_ts_ms, step_ms: time of row 0, distance of rows.
        values: float64 [T, N], NaN where missing.
        levels: int64 [N].
        names: N indicators.
        lower, upper: float64 [N], physical bounds.
    """

    item_id: str
    start_ts_ms: int
    step_ms: int
    values: Floats
    levels: NDArray[np.int64]
    names: tuple[str, ...]
    lower: Floats
    upper: Floats


def example_at(history: History, origins: NDArray[np.int64], context: int, last_row: int) -> Example:
    """Contexts that end at the given rows, with the following 64 rows as far as `last_row` (exclusive).

    Args:
        history: the rows.
        origins: last rows that are read.
        context: rows of context.
        last_row: first row that must not be looked at.
    """
    rows = origins[:, None] + np.arange(1 - context, 1)
    ahead = origins[:, None] + np.arange(1, MAX_HORIZON + 1)
    fine = np.where((rows >= 0)[..., None], history.values[np.maximum(rows, 0)], np.nan)
    inside = (ahead < last_row)[..., None]
    future = np.where(inside, history.values[np.minimum(ahead, len(history.values) - 1)], np.nan)
    n = len(history.names)
    empty = torch.zeros(len(origins), COARSE_ROWS, 0)
    return Example(
        ContextBatch(
            item_ids=(history.item_id,) * len(origins),
            origin_ts_ms=torch.from_numpy(history.start_ts_ms + (origins + 1) * history.step_ms),
            step_ms=history.step_ms,
            values=torch.from_numpy(np.nan_to_num(fine, nan=0.0).astype(np.float32)),
            observed=torch.from_numpy(np.isfinite(fine)),
            coarse=empty,
            coarse_observed=empty.bool(),
            levels=torch.from_numpy(history.levels.astype(np.int64)),
            indicators=history.names,
            lower=torch.from_numpy(history.lower.astype(np.float32)),
            upper=torch.from_numpy(history.upper.astype(np.float32)),
        ),
        torch.from_numpy(np.nan_to_num(future, nan=0.0).astype(np.float32)),
        torch.from_numpy(np.isfinite(future)).reshape(len(origins), MAX_HORIZON, n),
    )


def draw_history(
    histories: list[History], seed: int, context: int, ends: list[int], tokens: int = 192, first_row: int | None = None
) -> Example:
    """A random item's contexts at random rows before its end; the same seed gives the same example.

    Args:
        histories: items that share indicators and step, or not: one item per example.
        seed: of the draw.
        context: most rows of context.
        ends: per item the first row that must not be looked at.
        tokens: contexts x indicators, about.
        first_row: earliest last row of a context; default: a few rows into the item.
    """
    rng = np.random.default_rng((7_001, seed))
    sizes = np.array([max(1, end) for end in ends], dtype=np.float64)
    item = int(rng.choice(len(histories), p=sizes / sizes.sum()))
    history, end = histories[item], ends[item]
    first = min(32, max(1, end // 4)) if first_row is None else max(0, first_row)
    count = max(1, tokens // len(history.names))
    origins = np.sort(rng.integers(first, max(first + 1, end - 1), count))
    return example_at(history, origins.astype(np.int64), min(context, end), end)
