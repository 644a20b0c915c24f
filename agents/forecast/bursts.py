"""What a forecast is held to afterwards, and how it is widened by what was learned from that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.workload.subject import Subject
from model.baselines.context import seen_range
from model.calibration.trust import SAID, STEPS_AHEAD, Outlook
from model.contract import ContextBatch, ordered_paths, quantiles_of_ordered
from model.digits import six_digits
from model.widening import widen

DEMAND: Final = "request.arrival_rate"
_MID: Final = 0.5


def outlooks_of(
    ordered: Tensor, spoken: Sequence[Subject | None], sources: Sequence[str], origin_ts_ms: int, step_ms: int
) -> list[Outlook | None]:
    """What each forecast says of demand four steps ahead, as it is published (fewer steps where it ends before).

    Args:
        ordered: float32 [B, H, S], demand of each step, ascending along the last axis.
        spoken: B of them, None where nothing is published of demand; None comes of those without demand in the newest
            slot, too.
    """
    ahead = min(STEPS_AHEAD, ordered.shape[1])
    said = quantiles_of_ordered(ordered[:, ahead - 1], torch.tensor(SAID))  # [B, 3]
    numbers = six_digits(said.numpy().astype(np.float64)).tolist()
    due = origin_ts_ms // step_ms - 1 + ahead
    lasts = [None if subject is None else subject.window.newest(DEMAND) for subject in spoken]
    return [
        None if last is None else Outlook(due, low, mid, high, last, source)
        for (low, mid, high), last, source in zip(numbers, lasts, sources, strict=True)
    ]


class Futures:
    """The joint paths of a batch, indicator by indicator, each widened by the row's factor and put in order when asked.

    Every path is moved away from the median of its step by that factor, within the indicator's bounds; rows with factor
    1 keep their bits. Most indicators are only read once the plan is out, which therefore does not wait for them.

    Args:
        paths: [B, S, H, N]; not changed.
        factors: B of them.
        batch: what they were forecast from.
    """

    def __init__(self, paths: Tensor, factors: Sequence[float], batch: ContextBatch) -> None:
        self._paths = paths
        self._factors = np.array(factors, np.float32)
        self._batch = batch
        self._bounds = batch.lower.cpu().numpy(), batch.upper.cpu().numpy()
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def values(self, indicator: int) -> Tensor:
        """float32 [B, H, S]; with those of other indicators, path s is one joint future."""
        return self._of(indicator)[0]

    def ordered(self, indicator: int) -> Tensor:
        """float32 [B, H, S], ascending along the last axis."""
        return self._of(indicator)[1]

    def _of(self, indicator: int) -> tuple[Tensor, Tensor]:
        known = self._known.get(indicator)
        if known is None:
            known = self._known[indicator] = self._widened(indicator)
        return known

    def _widened(self, indicator: int) -> tuple[Tensor, Tensor]:
        paths = self._paths[..., indicator].detach().to("cpu", torch.float32)
        values = paths.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        ordered = ordered_paths(values)
        if (self._factors != 1.0).any():
            middle = quantiles_of_ordered(ordered, torch.tensor([_MID]))[..., 0].numpy()
            lower, upper = (bounds[indicator] for bounds in self._bounds)
            reach = _range_seen(self._batch, indicator)
            for numbers in (values, ordered):
                widen(numbers.numpy(), middle, self._factors, reach, lower, upper)
        return values, ordered


def _range_seen(batch: ContextBatch, indicator: int) -> NDArray[np.float32]:
    """Highest less lowest value of one indicator in the fine rows of each context, [B]; 0 where none is known."""
    low, high = seen_range(batch.values[..., indicator], batch.observed[..., indicator])
    return (high - low).clamp(min=0.0).to("cpu", torch.float32).numpy()
