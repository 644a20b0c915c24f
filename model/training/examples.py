"""Training windows of recorded and synthetic telemetry, with features that are computed once and read many times."""

from __future__ import annotations

import multiprocessing
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.contract import COARSE_ROWS, ContextBatch
from model.network.features import Features, extract_features
from model.network.spec import MAX_HORIZON, NetworkSpec
from model.training.synthetic import Example, draw_example

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """The recorded rows of one workload.

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
        last_row: first row that must not be read.
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
        ends: per item the first row that must not be read.
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


_FEATURE_BATCH_ROWS = 64  # windows whose features are computed together


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Windows with their features, and the rows that followed them.

    Attributes:
        features: of B windows.
        target: [B, H, N].
        observed: bool [B, H, N].
        unit: float64 [B, N], divisor of the errors; None is the difficulty of each window.
        tokens: [B, N, D], the tokens of a network whose head alone is trained.
    """

    features: Features
    target: Tensor
    observed: Tensor
    unit: Tensor | None = None
    tokens: Tensor | None = None

    def take(self, rows: Tensor) -> FeatureBatch:
        """Some of the windows, by index."""
        features = _map_tensors([self.features], lambda parts: parts[0][rows])
        unit, tokens = (None if x is None else x[rows] for x in (self.unit, self.tokens))
        return FeatureBatch(features, self.target[rows], self.observed[rows], unit, tokens)

    def parts(self, size: int) -> list[FeatureBatch]:
        """All windows in their order, `size` at a time."""
        return [self.take(some) for some in torch.split(torch.arange(len(self.target)), size)]


def prepare_rows(
    history: History, origins: NDArray[np.int64], spec: NetworkSpec, *, context: int, horizon: int, last_row: int
) -> FeatureBatch:
    """The windows that end at the given rows.

    Only the units of the context and `horizon` steps of the candidates are stored. A thousand windows of eleven
    indicators then take some 25 MB.

    Args:
        history: the rows.
        origins: last rows that are read.
        spec: of the network that reads them.
        context: rows of context.
        horizon: steps ahead that are learned.
        last_row: first row that must not be read.
    """
    parts = []
    for first in range(0, len(origins), _FEATURE_BATCH_ROWS):
        some = origins[first : first + _FEATURE_BATCH_ROWS]
        example = example_at(history, some, context, last_row)
        with torch.no_grad():
            features = _truncate_horizon(extract_features(example.batch, spec), horizon)
        parts.append(FeatureBatch(features, example.target[:, :horizon], example.observed[:, :horizon]))
    return concatenate(parts)


def concatenate(parts: Sequence[FeatureBatch]) -> FeatureBatch:
    """One batch of all windows; the parts' indicators and levels are the same."""
    features = [part.features for part in parts]
    units = [part.unit for part in parts if part.unit is not None]
    tokens = [part.tokens for part in parts if part.tokens is not None]
    return FeatureBatch(
        _map_tensors(features, torch.cat),
        torch.cat([part.target for part in parts]),
        torch.cat([part.observed for part in parts]),
        torch.cat(units) if units else None,
        torch.cat(tokens) if tokens else None,
    )


def shuffled(groups: Sequence[FeatureBatch], size: int, seed: int, start: int = 0) -> Iterator[FeatureBatch]:
    """Endless batches: every window once per pass, in a new order each time.

    Args:
        groups: windows that can be batched with each other.
        size: windows of a batch; a group that has fewer gives what it has.
        seed: of the orders.
        start: first batch, for a run that is resumed.
    """
    number = [max(1, len(group.target) // size) for group in groups]  # the remainder is used in another pass
    each = sum(number)
    while True:
        draw = np.random.default_rng((7_002, seed, start // each))
        batches = []
        for group, count in zip(groups, number, strict=True):
            order = draw.permutation(len(group.target))
            batches += [(group, order[k * size : (k + 1) * size]) for k in range(count)]
        random.Random(seed * 1_000_003 + start // each).shuffle(batches)
        for group, rows in batches[start % each :]:
            yield group.take(torch.from_numpy(rows))
        start += each - start % each


def _truncate_horizon(features: Features, horizon: int) -> Features:
    offered, context = features.candidates, features.context
    return replace(
        features,
        context=replace(context, z=context.z[..., -1:].clone(), observed=context.observed[..., -1:].clone()),
        candidates=replace(
            offered,
            z=offered.z[..., :horizon].clone(),
            offered=offered.offered[..., :horizon].clone(),
            hindcast=offered.hindcast[..., :horizon].clone(),
        ),
    )


def _map_tensors(parts: Sequence[Any], change: Callable[[Any], Tensor]) -> Any:
    """The dataclass whose every tensor is `change` of the parts' tensors; levels are shared by all windows."""
    if isinstance(parts[0], Tensor):
        return change(parts)
    names = [field.name for field in fields(parts[0])]
    values = ([getattr(part, name) for part in parts] for name in names)
    return type(parts[0])(
        *(x[0] if n == "levels" else _map_tensors(x, change) for n, x in zip(names, values, strict=True))
    )


def prepare(example: Example, spec: NetworkSpec) -> FeatureBatch:
    """The example with its features, which training reads many times."""
    with torch.no_grad():
        return FeatureBatch(extract_features(example.batch, spec), example.target, example.observed)


# An endless stream of synthetic batches in a fixed order, computed ahead in other processes.


TOKENS = 192
_PREFETCH_BATCHES = 12
T = TypeVar("T")
_VALIDATION = 1_000_000_000  # seeds from here on are never trained on


class SyntheticShares(NamedTuple):
    """Shares of the synthetic batches that are request loads, and families of patterns."""

    loads: float = 0.0
    patterns: float = 0.0


NO_SHARES: Final = SyntheticShares()


def synthetic_batch(
    seed: int, spec: NetworkSpec, shares: SyntheticShares = NO_SHARES, tokens: int = TOKENS
) -> FeatureBatch:
    """The synthetic batch of a seed, with its features."""
    return prepare(draw_example(seed, tokens, *shares), spec)


def synthetic_stream(
    spec: NetworkSpec,
    start: int,
    seed: int,
    workers: int,
    shares: SyntheticShares = NO_SHARES,
    tokens: int = TOKENS,
) -> Iterator[FeatureBatch]:
    """Synthetic batches from number `start` on, in an order that does not depend on the number of workers.

    Args:
        workers: processes that compute ahead; 0 computes in this process.
        tokens: about so many in each batch.
    """
    make = partial(synthetic_batch, spec=spec, shares=shares, tokens=tokens)
    return ordered(make, seed * 10_000_000 + start, workers)


def synthetic_validation(spec: NetworkSpec, count: int = 12, shares: SyntheticShares = NO_SHARES) -> list[FeatureBatch]:
    """The validation batches of synthetic training."""
    return [synthetic_batch(_VALIDATION + k, spec, shares) for k in range(count)]


def ordered(make: Callable[[int], T], start: int, workers: int) -> Iterator[T]:
    """The results make(start), make(start + 1), ... in order, computed ahead by `workers` processes."""
    number = start
    if workers == 0:
        while True:
            yield make(number)
            number += 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        waiting: deque[Future[T]] = deque()
        while True:
            while len(waiting) < _PREFETCH_BATCHES:
                waiting.append(pool.submit(make, number))
                number += 1
            yield waiting.popleft().result()


def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
