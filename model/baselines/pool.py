"""Forecasters made of forecasters: fallback, linear pool, shrinkage to the observed range, and continued surges.

`FallbackForecaster` answers every row and names who did. `PoolForecaster` mixes members path by path. `RangeShrinkage`
moves paths beyond the observed range towards it. `SurgeForecaster` lets part of the paths continue a surge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    PathWriter,
    as_array,
    check_request,
    empty_paths,
    observed_range,
    put_paths,
    row_uniforms,
)
from model.compiled import compiled
from model.contract import ContextBatch, ForecastBatch, Forecaster, WrappedForecaster, take_rows


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows that a forecaster is asked for.

    Attributes:
        ring_rows: ten-minute means that its ring holds at least, of one indicator.
        reach_s: seconds ahead, at most.
    """

    ring_rows: int
    reach_s: float

    def rows(self, batch: ContextBatch, horizon: int) -> Tensor:
        """bool [B]."""
        if horizon * batch.step_ms > 1000 * self.reach_s or batch.coarse_observed.shape[2] == 0:
            return torch.zeros(len(batch), dtype=torch.bool, device=batch.values.device)
        return batch.coarse_observed.sum(1).amax(-1) >= self.ring_rows


class FallbackForecaster:
    """The primary's answer where it has enough context and is finite, the secondary's elsewhere.

    A primary that raises is answered by the secondary for all its rows; chains are built by nesting. What the secondary
    raises reaches the caller.

    Args:
        primary: asked for the rows with at least its `min_context` observed steps, up to its `max_horizon`.
        secondary: asked for the rest.
        on_error: told what the primary raised.
        where: the primary is asked for no other rows; None: for all with enough context.
    """

    def __init__(
        self,
        primary: Forecaster,
        secondary: Forecaster,
        on_error: Callable[[Exception], None] | None = None,
        where: RowFilter | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._on_error = on_error
        self._where = where
        body = f"{primary.fingerprint}|{secondary.fingerprint}" + (f"|{where}" if where is not None else "")
        self._fingerprint = "fallback-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return max(self._primary.max_horizon, self._secondary.max_horizon)

    @property
    def min_context(self) -> int:
        return min(self._primary.min_context, self._secondary.min_context)

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says; `sources` names per row who answered.

        Raises:
            ValueError: horizon above both, inconsistent shapes, or rows that the secondary cannot answer either.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        asks = _enough_context(batch, self._primary.min_context)
        if self._where is not None:
            asks &= self._where.rows(batch, horizon)
        indices = asks.nonzero()[:, 0].tolist()
        first = self._ask_primary(batch, indices, horizon, num_paths) if indices else None
        if first is None:
            answer = self._secondary.forecast(batch, horizon, num_paths)
            return ForecastBatch(answer.paths, answer.sources, self._fingerprint)
        finite = _finite_rows(first.paths)
        answered = [row for row, good in zip(indices, finite, strict=True) if good]
        left = sorted(set(range(len(batch))) - set(answered))
        if not left:
            return ForecastBatch(first.paths, first.sources, self._fingerprint)
        second = self._secondary.forecast(take_rows(batch, left), horizon, num_paths)
        paths = first.paths.new_empty((len(batch), *second.paths.shape[1:]))
        paths[left] = second.paths
        sources = dict(zip(left, second.sources, strict=True))
        if answered:
            positions = [k for k, good in enumerate(finite) if good]
            paths[answered] = first.paths[positions]
            sources |= {indices[k]: first.sources[k] for k in positions}
        return ForecastBatch(paths, tuple(sources[row] for row in range(len(batch))), self._fingerprint)

    def _ask_primary(self, batch: ContextBatch, index: list[int], horizon: int, num_paths: int) -> ForecastBatch | None:
        """The primary's answer for these rows; None where it raises: a forecast is never worth an outage."""
        if horizon > self._primary.max_horizon:
            return None
        rows = batch if len(index) == len(batch) else take_rows(batch, index)
        try:
            return self._primary.forecast(rows, horizon, num_paths)
        except Exception as error:  # noqa: BLE001 - whatever it is, the secondary answers, and the sources show it
            if self._on_error is not None:
                self._on_error(error)
            return None


def _finite_rows(paths: Tensor) -> list[bool]:
    """Which rows hold finite numbers only. A finite sum says so at once; only the others are looked at in full."""
    rows = paths.flatten(1)
    finite: list[bool] = rows.sum(1).isfinite().tolist()
    return [good or bool(rows[k].isfinite().all()) for k, good in enumerate(finite)]


def _enough_context(batch: ContextBatch, min_context: int) -> Tensor:
    """bool [B]: rows with enough observed steps of some level-1 indicator (of any indicator where none has level 1)."""
    present = batch.observed & batch.values.isfinite()
    demand = batch.levels == 1
    columns = present[:, :, demand] if bool(demand.any()) else present
    if columns.shape[-1] == 0:
        return torch.zeros(len(batch), dtype=torch.bool, device=batch.values.device)
    return columns.sum(1).amax(-1) >= min_context


# Linear pool: each member gives some of the paths, so that the distribution is the mixture of theirs.
#
# The mixture is wide where members disagree, and as sharp as they are where they agree. Every path is one member's
# joint future. Averaging quantiles would be sharper, but would hide the disagreement that decisions need.
# Source: M. Stone, "The opinion pool", Annals of Mathematical Statistics 1961.


class PoolForecaster:
    """Mixture of forecasters in whole shares.

    Args:
        members: forecaster and share; of every sum(shares) paths in a row a member gives its share, whatever their
            number, so that any prefix of the paths holds the mixture as nearly as its length allows.

        name: of its forecasts' source.

    Raises:
        ValueError: no member, or a share below 1.
    """

    def __init__(self, members: Sequence[tuple[Forecaster, int]], name: str = "pool") -> None:
        if not members or min(share for _, share in members) < 1:
            raise ValueError("a pool needs members, each with a share of at least 1")
        self._name = name
        self._members = tuple(forecaster for forecaster, _ in members)
        self._turns = _member_order([share for _, share in members])
        body = "|".join(f"{forecaster.fingerprint}*{share}" for forecaster, share in members)
        self._fingerprint = "pool-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return min(member.max_horizon for member in self._members)

    @property
    def min_context(self) -> int:
        return max(member.min_context for member in self._members)

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, inconsistent shapes, or what a member refuses.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        b, _, n = batch.values.shape
        out = empty_paths(b, num_paths, horizon, n, batch.values.device)
        turn = np.resize(self._turns, num_paths)
        for k, member in enumerate(self._members):
            places = np.flatnonzero(turn == k)
            if not len(places):
                continue
            if isinstance(member, PathWriter):
                member.write_paths(batch, horizon, places, out)
            else:
                put_paths(member.forecast(batch, horizon, len(places)).paths, places, out)
        return ForecastBatch(out, (self._name,) * b, self._fingerprint)


def _member_order(shares: Sequence[int]) -> list[int]:
    """Whose turn it is, spread as evenly as whole turns allow: shares 2, 1 take turns 0, 1, 0."""
    total, given, order = sum(shares), [0] * len(shares), []
    for place in range(1, total + 1):
        behind = [share * place / total - have for share, have in zip(shares, given, strict=True)]
        k = max(range(len(shares)), key=behind.__getitem__)
        given[k] += 1
        order.append(k)
    return order


# Shrinkage of paths to the range that the context has shown.
#
# Tails are estimated from few windows, and the peak over many steps reads them in every plan. New extremes are rare and
# small, so the part of a path beyond the highest (lowest) observed value is shortened, the more the longer the context.
# Where the forecast itself leaves the range (a ramp), only the part outside its central half is shortened.


# Rows of context at which half of the excess beyond the observed range is kept.
_HALVING_ROWS: Final = 341
# Most rows of context that count.
_MAX_ROWS: Final = 1024
# Upper quantile of the central half of the paths.
_CENTRAL_QUANTILE: Final = 0.75
# Rows that are shrunk together, which bounds the memory of the copies.
_CHUNK_ROWS: Final = 8


class RangeShrinkage(WrappedForecaster):
    """A forecaster whose paths are shrunk towards the observed range of their context.

    Args:
        inner: makes the paths; everything else is its own.
    """

    def __init__(self, inner: Forecaster) -> None:
        super().__init__(inner, "records", "records/1/")

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: what the inner forecaster refuses.
        """
        forecast = self._inner.forecast(batch, horizon, num_paths)
        for start in range(0, len(batch), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            paths = forecast.paths[rows]  # a view; no one else holds these paths
            low, high, share = _context_range(batch, rows)
            lower, upper = _central_range(paths)
            high = torch.maximum(high[:, None], upper)[:, None]  # [R, 1, H, N]
            low = torch.minimum(low[:, None], lower)[:, None]
            inside = torch.minimum(torch.maximum(paths, low), high)
            paths.copy_(inside + share[:, None, None] * (paths - inside))
        return ForecastBatch(forecast.paths, forecast.sources, self._fingerprint)


def _central_range(paths: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the central half of the paths [R, H, N]."""
    last = paths.shape[1] - 1
    low, high = round((1 - _CENTRAL_QUANTILE) * last), round(_CENTRAL_QUANTILE * last)
    if paths.device.type == "cpu":  # numpy selects with vector instructions
        parted = torch.from_numpy(np.partition(paths.numpy(), (low, high), axis=1))
    else:
        parted = paths.sort(dim=1).values
    return parted[:, low], parted[:, high]


def _context_range(batch: ContextBatch, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Lowest and highest observed value of each column, fine and coarse rows alike, and the share kept beyond, [R, N].

    A column that is nowhere observed keeps its paths as they are.
    """
    values, observed = batch.values[rows], batch.observed[rows]
    count = (observed & values.isfinite()).sum(1).clamp(max=_MAX_ROWS)
    share = 1 / (1 + count.to(values.dtype) / _HALVING_ROWS)
    low, high = observed_range(values, observed)
    c = batch.coarse.shape[2]
    if c and batch.coarse.shape[1]:
        lowest, highest = observed_range(batch.coarse[rows], batch.coarse_observed[rows])
        low[:, :c] = torch.minimum(low[:, :c], lowest)
        high[:, :c] = torch.maximum(high[:, :c], highest)
    return low, high, share


# Detection of surges: the newest steps deviate more than everything before them.


Float = NDArray[np.float64]
Single = NDArray[np.float32]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Longest surge, in steps; an older one is a level that the context already shows.
MAX_SURGE_STEPS: Final = 8
# Steps whose mean is the level that a step is compared with.
_LEVEL_STEPS: Final = 8
# Fewest earlier deviations that a surge is compared with.
_MIN_STEPS: Final = 32
# Smallest deviation of a surge, relative to the largest earlier deviation.
_SURGE_RATIO: Final = 1.5


@compiled
def surge_steps(values: Single, observed: Mask, steps: Ints, rises: Float) -> None:
    """Find the surges of rows and columns.

    A surge begins with the first of the newest steps that deviates from the mean of the eight known steps before it by
    more than 1.5 times the largest such deviation in the older context, and lasts while the newest value does.

    Args:
        values, observed: [B, L, N].
        steps: [B, N], gets how many known steps the surge has lasted, 0 = none.
        rises: [B, N, 8], gets in place j - 1 what the last j steps rose by, signed; 0 where they went back.
    """
    rows, length, columns = values.shape
    x, deviation = np.empty(length), np.empty(length)
    for b in range(rows):
        for n in range(columns):
            count = 0
            for t in range(length):
                if observed[b, t, n] and np.isfinite(values[b, t, n]):
                    x[count] = values[b, t, n]
                    count += 1
            lasted = _surge_length(x[:count], deviation)
            steps[b, n] = lasted
            if lasted == 0:
                continue
            now, first = x[count - 1], count - lasted
            level = x[first] - deviation[first]
            for j in range(lasted):
                rise = now - (x[count - 2 - j] if j + 1 < lasted else level)
                rises[b, n, j] = rise if rise * (now - level) > 0 else 0.0


@compiled
def _surge_length(x: Float, deviation: Float) -> int:
    """Steps since the surge began; `deviation` is filled from the ninth on."""
    count = len(x)
    old = count - MAX_SURGE_STEPS
    if old - _LEVEL_STEPS < _MIN_STEPS:
        return 0
    usual = 0.0
    for k in range(_LEVEL_STEPS, count):
        total = 0.0
        for before in range(k - _LEVEL_STEPS, k):
            total += x[before]
        deviation[k] = x[k] - total / _LEVEL_STEPS
        if k < old:
            usual = max(usual, abs(deviation[k]))
    for k in range(old, count):
        if abs(deviation[k]) > _SURGE_RATIO * usual:
            now = x[count - 1] - (x[k] - deviation[k])
            if now * deviation[k] > 0 and abs(now) > _SURGE_RATIO * usual:
                return count - k
            return 0
    return 0


# Continuation of surges.
#
# A regression treats the first steps of a surge as noise and reverts to earlier values. That is often right, but the
# load may also continue to rise. So part of the paths of a surging row start at the newest value and continue its last
# steps for some of the way.


# One of so many consecutive paths continues the surge.
_CONTINUING_PATH_STRIDE: Final = 3
# Seed of the draws of a surge.
_SURGE_SEED: Final = 1


class SurgeForecaster(WrappedForecaster):
    """A forecaster of whose paths a part continues the surge of the newest steps.

    Args:
        inner: makes the paths; rows without a surge keep every bit of them.
        level: takes the newest value for the level; to its paths the growth is added.
    """

    def __init__(self, inner: Forecaster, level: Forecaster) -> None:
        super().__init__(inner, "surge", f"surge/1/{level.fingerprint}/")
        self._level = level

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: what the inner forecaster refuses.
        """
        forecast = self._inner.forecast(batch, horizon, num_paths)
        places = torch.arange(_CONTINUING_PATH_STRIDE - 1, num_paths, _CONTINUING_PATH_STRIDE)
        steps, rises = _surges(batch)
        rows = np.flatnonzero(steps.any(axis=1)).tolist()
        if rows and len(places):
            surging = take_rows(batch, rows)
            going_on = self._level.forecast(surging, horizon, len(places)).paths
            grown = going_on + _growth(surging, steps[rows], rises[rows], horizon, len(places)).to(going_on)
            for k, row in enumerate(rows):
                forecast.paths[row, places] = grown[k].clamp(batch.lower, batch.upper)
        return ForecastBatch(forecast.paths, forecast.sources, self._fingerprint)


def _surges(batch: ContextBatch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps that each surge has lasted [B, N], 0 = none, and by how much its last 1, 2, ... steps rose [B, N, 8]."""
    b, _, n = batch.values.shape
    steps, rises = np.zeros((b, n), np.int64), np.zeros((b, n, MAX_SURGE_STEPS))
    surge_steps(as_array(batch.values.cpu(), torch.float32), as_array(batch.observed.cpu(), torch.bool), steps, rises)
    return steps, rises


def _growth(
    batch: ContextBatch, steps: NDArray[np.int64], rises: NDArray[np.float64], horizon: int, num_paths: int
) -> Tensor:
    """What every path rises by beyond the newest value, float32 [B, S, H, N].

    A path goes on as in the last 1 to m of the m steps of the surge, evenly drawn, and a share of the way, evenly
    drawn: as fast, over as many steps, and is then at its level. All columns of a path draw alike.
    """
    numbers = row_uniforms(batch.item_ids, batch.origin_ts_ms, _SURGE_SEED, 2 * num_paths).reshape(
        len(batch), num_paths, 2
    )
    back = np.floor(numbers[..., :1] * steps[:, None]).astype(np.int64)  # [B, S, N], steps - 1
    rise = np.take_along_axis(rises[:, None], back[..., None], axis=3)[..., 0] * numbers[..., 1:]  # [B, S, N]
    passed = np.minimum(np.arange(1, horizon + 1)[:, None] / (back[:, :, None] + 1), 1.0)  # [B, S, H, N]
    return torch.from_numpy((rise[:, :, None] * passed).astype(np.float32))
