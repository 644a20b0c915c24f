"""Windows with their features computed once, to be read many times: what short training on few rows lives on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.network.features import Features, describe
from model.network.history import History, example_at
from model.network.spec import NetworkSpec

_AT_ONCE = 64  # windows whose features are computed together


@dataclass(frozen=True, slots=True)
class Prepared:
    """Windows with their features, and what came after them.

    Attributes:
        features: of B windows.
        target: [B, H, N].
        observed: bool [B, H, N].
        unit: float64 [B, N], what errors are measured by; None: each window's own difficulty.
        tokens: [B, N, D], what a network that is not learned any more makes of the features.
    """

    features: Features
    target: Tensor
    observed: Tensor
    unit: Tensor | None = None
    tokens: Tensor | None = None

    def take(self, rows: Tensor) -> Prepared:
        """Some of the windows, by index."""
        features = _each([self.features], lambda parts: parts[0][rows])
        unit, tokens = (None if x is None else x[rows] for x in (self.unit, self.tokens))
        return Prepared(features, self.target[rows], self.observed[rows], unit, tokens)

    def parts(self, size: int) -> list[Prepared]:
        """All windows in their order, `size` at a time."""
        return [self.take(some) for some in torch.split(torch.arange(len(self.target)), size)]


def prepare_rows(
    history: History, origins: NDArray[np.int64], spec: NetworkSpec, *, context: int, horizon: int, last_row: int
) -> Prepared:
    """The windows that end at the given rows.

    Of the context only the units are kept, of the candidates `horizon` steps: a thousand windows of eleven indicators
    take some 25 MB.

    Args:
        history: the rows.
        origins: last rows that are read.
        spec: of the network that reads them.
        context: rows of context.
        horizon: steps ahead that are learned.
        last_row: first row that must not be looked at.
    """
    parts = []
    for first in range(0, len(origins), _AT_ONCE):
        some = origins[first : first + _AT_ONCE]
        example = example_at(history, some, context, last_row)
        with torch.no_grad():
            features = _shortened(describe(example.batch, spec), horizon)
        parts.append(Prepared(features, example.target[:, :horizon], example.observed[:, :horizon]))
    return joined(parts)


def joined(parts: Sequence[Prepared]) -> Prepared:
    """One batch of all windows; the parts' indicators and levels are the same."""
    features = [part.features for part in parts]
    units = [part.unit for part in parts if part.unit is not None]
    tokens = [part.tokens for part in parts if part.tokens is not None]
    return Prepared(
        _each(features, torch.cat),
        torch.cat([part.target for part in parts]),
        torch.cat([part.observed for part in parts]),
        torch.cat(units) if units else None,
        torch.cat(tokens) if tokens else None,
    )


def shuffled(groups: Sequence[Prepared], size: int, seed: int, start: int = 0) -> Iterator[Prepared]:
    """Endless batches: every window once per pass, in a new order each time.

    Args:
        groups: windows that can be batched with each other.
        size: windows of a batch; a group that has fewer gives what it has.
        seed: of the orders.
        start: batch to begin with, when a run is taken up again.
    """
    number = [max(1, len(group.target) // size) for group in groups]  # what is left over has its turn another time
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


def _shortened(features: Features, horizon: int) -> Features:
    offered, context = features.candidates, features.context
    return replace(
        features,
        context=replace(context, z=context.z[..., -1:].clone(), known=context.known[..., -1:].clone()),
        candidates=replace(offered, z=offered.z[..., :horizon].clone(), offered=offered.offered[..., :horizon].clone()),
    )


def _each(parts: Sequence[Any], change: Callable[[Any], Tensor]) -> Any:
    """The same change of every tensor of like dataclasses, however deep; levels belong to all windows."""
    if isinstance(parts[0], Tensor):
        return change(parts)
    names = [field.name for field in fields(parts[0])]
    values = ([getattr(part, name) for part in parts] for name in names)
    return type(parts[0])(*(x[0] if n == "levels" else _each(x, change) for n, x in zip(names, values, strict=True)))
