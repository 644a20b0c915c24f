"""Synthetic batches: contexts as the network will meet them, with what came after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.contract import COARSE_ROWS, ContextBatch
from model.network.spec import MAX_HORIZON
from model.training.synthetic.components import Array, draw_loads, unit
from model.training.synthetic.series import draw_groups

_DAY_S = 86_400
_MONDAY_MS = 1_704_067_200_000  # 2024-01-01


@dataclass(frozen=True, slots=True)
class Example:
    """Contexts and their futures.

    Attributes:
        batch: B rows.
        target: float32 [B, H, N].
        observed: bool [B, H, N].
    """

    batch: ContextBatch
    target: Tensor
    observed: Tensor


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of telemetry: step, and the longest context."""

    step_s: float
    context: int
    share: float
    ring: bool = False  # live: few fine rows, a week of ten-minute means

    @property
    def day_rows(self) -> float | None:
        """Rows in a day; None where the rows do not hold one."""
        rows = _DAY_S / self.step_s
        return rows if self.context + MAX_HORIZON > rows else None


SETTINGS = (
    Setting(600, 1008, 0.2),
    Setting(600, 288, 0.06),
    Setting(600, 96, 0.05),
    Setting(300, 2016, 0.13),
    Setting(60, 4320, 0.05),
    Setting(3600, 336, 0.03),
    Setting(60, 240, 0.07),
    Setting(10, 128, 0.07),
    Setting(1, 600, 0.08),
    Setting(1, 128, 0.05),
    Setting(5, 128, 0.07, ring=True),
    Setting(15, 128, 0.09, ring=True),
    Setting(30, 128, 0.05, ring=True),
)
_LOAD_STEPS_S, _LOAD_STEP_SHARES = (5, 10, 15, 30, 60), (0.3, 0.25, 0.25, 0.1, 0.1)
_LOAD_CONTEXT = 128
_ALL_COLUMNS = 0.8  # of request loads that are told of tokens, too
_INDICATORS, _INDICATOR_SHARES = (1, 2, 3, 4, 6, 8, 13), (0.34, 0.14, 0.16, 0.14, 0.1, 0.08, 0.04)
_ORIGINS = 4  # windows taken from one series
_GAP = 97


def draw_example(seed: int, tokens: int = 256, loads: float = 0.0) -> Example:
    """One batch of about `tokens` tokens; the same arguments give the same batch.

    Args:
        loads: chance that it is of request loads.
    """
    if loads > 0:
        chance = np.random.default_rng((20_261_123, seed))
        if chance.random() < loads:
            return _loads(chance, tokens)
    rng = np.random.default_rng((20_240_801, seed))
    setting = SETTINGS[rng.choice(len(SETTINGS), p=[s.share for s in SETTINGS])]
    n = int(rng.choice(_INDICATORS, p=_INDICATOR_SHARES))
    groups = max(1, tokens // (n * _ORIGINS))
    start_day = float(rng.random() * 7)
    if setting.ring:
        values, ring, origin_ms = _live(rng, setting, groups, n, start_day)
        num_demand = ring.shape[2]
    else:
        series = draw_groups(rng, groups, n, _rows(setting), setting.day_rows, start_day)
        values, origin_ms = _windows(series, setting, start_day)
        num_demand = int(rng.integers(0, n + 1))
        ring = np.zeros((len(values), 0, num_demand))
    return _example(rng, setting, values, ring, origin_ms, num_demand)


def _loads(rng: np.random.Generator, tokens: int) -> Example:
    """Demand alone, of workloads that are not an hour old."""
    setting = Setting(float(rng.choice(_LOAD_STEPS_S, p=_LOAD_STEP_SHARES)), _LOAD_CONTEXT, 0.0)
    n = 3 if rng.random() < _ALL_COLUMNS else 1
    groups = max(1, tokens // (n * _ORIGINS))
    series = draw_loads(rng, groups, _rows(setting), setting.step_s)[..., :n]
    values, origin_ms = _windows(series, setting, float(rng.random() * 7))
    return _example(rng, setting, values, np.zeros((len(values), 0, n)), origin_ms, n)


def _rows(setting: Setting) -> int:
    """Rows of a series from which all its windows are taken."""
    return setting.context + MAX_HORIZON + (_ORIGINS - 1) * _GAP


def _windows(series: Array, setting: Setting, start_day: float) -> tuple[Array, NDArray[np.int64]]:
    """Windows of series, and their origins in ms."""
    length = setting.context + MAX_HORIZON
    values = np.concatenate([series[:, k * _GAP : k * _GAP + length] for k in range(_ORIGINS)])
    ends = np.repeat(np.arange(_ORIGINS) * _GAP + setting.context, len(series))
    return values, _MONDAY_MS + ((start_day * _DAY_S + ends * setting.step_s) * 1000).astype(np.int64)


def _live(
    rng: np.random.Generator, setting: Setting, groups: int, n: int, start_day: float
) -> tuple[Array, Array, NDArray[np.int64]]:
    """A week of ten-minute means, and fine rows that follow it with their own fast movements."""
    rows = setting.context + MAX_HORIZON
    groups *= _ORIGINS
    span = int(np.ceil(rows * setting.step_s / 600)) + 3
    slow = draw_groups(rng, groups, n, COARSE_ROWS + span, 144.0, start_day)
    fast = draw_groups(rng, groups, n, rows, None)
    # Row r of the ring covers [600 r, 600 r + 600); the origin lies somewhere in the row after the newest.
    into = rng.integers(0, max(1, int(600 / setting.step_s)), groups) * setting.step_s
    origin_s = COARSE_ROWS * 600 + into
    at = (origin_s[:, None] + (np.arange(-setting.context, MAX_HORIZON) + 0.5) * setting.step_s) / 600 - 0.5
    low = np.floor(at).astype(int)
    share = (at - low)[..., None]
    pick = np.arange(groups)[:, None]
    course = slow[pick, low] * (1 - share) + slow[pick, low + 1] * share
    speed = np.exp(rng.normal(-1.5, 1, (groups, 1, n)))
    size = slow.std(axis=1, keepdims=True) * speed + 0.02 * np.abs(course).mean(axis=1, keepdims=True)
    flat = fast.transpose(0, 2, 1).reshape(groups * n, rows)
    moves = unit(flat).reshape(groups, n, rows).transpose(0, 2, 1)
    values = course + size * moves
    values = np.where(slow.min(axis=1, keepdims=True) >= 0, np.maximum(values, 0), values)
    num_demand = int(rng.integers(1, min(n, 4) + 1))
    ring = slow[:, :COARSE_ROWS, :num_demand]
    return values, ring, _MONDAY_MS + ((start_day * _DAY_S + origin_s) * 1000).astype(np.int64)


def _example(
    rng: np.random.Generator,
    setting: Setting,
    values: Array,
    ring: Array,
    origin_ms: NDArray[np.int64],
    num_demand: int,
) -> Example:
    b, rows, n = values.shape
    length = rows - MAX_HORIZON
    if rng.random() < 0.35:  # younger workloads
        length = int(np.exp(rng.uniform(np.log(min(64, length)), np.log(length))))
        values = values[:, -(length + MAX_HORIZON) :]
    observed = np.ones((b, length, n), dtype=bool)
    sparse = rng.random((b, 1, n)) < 0.15
    observed &= ~(sparse & (rng.random((b, length, n)) < rng.uniform(0.01, 0.2)))
    gap = rng.random((b, 1, n)) < 0.07
    start = rng.integers(0, length, (b, 1, n))
    time = np.arange(length)[None, :, None]
    observed &= ~(gap & (time >= start) & (time < start + rng.integers(1, 40, (b, 1, n))))
    seen = np.ones(ring.shape, dtype=bool)
    if ring.shape[1]:
        age = np.where(rng.random((b, 1, 1)) < 0.5, COARSE_ROWS, rng.integers(0, COARSE_ROWS, (b, 1, 1)))
        seen &= np.arange(ring.shape[1])[None, :, None] >= ring.shape[1] - age
    levels = np.concatenate((np.ones(num_demand), np.sort(rng.integers(2, 4, n - num_demand)))).astype(np.int64)
    context = np.where(observed, values[:, :length], 0.0)
    floor = values.min(axis=(0, 1)) >= 0
    batch = ContextBatch(
        item_ids=tuple(f"synthetic/{k}" for k in range(b)),
        origin_ts_ms=torch.from_numpy(np.asarray(origin_ms, dtype=np.int64)),
        step_ms=round(setting.step_s * 1000),
        values=torch.from_numpy(context.astype(np.float32)),
        observed=torch.from_numpy(observed),
        coarse=torch.from_numpy(np.where(seen, ring, 0.0).astype(np.float32)),
        coarse_observed=torch.from_numpy(seen),
        levels=torch.from_numpy(levels),
        indicators=tuple(f"indicator_{k}" for k in range(n)),
        lower=torch.from_numpy(np.where(floor, 0.0, -np.inf).astype(np.float32)),
        upper=torch.full((n,), torch.inf),
    )
    target = torch.from_numpy(values[:, length:].astype(np.float32))
    return Example(batch, target, torch.ones_like(target, dtype=torch.bool))
