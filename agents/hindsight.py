"""What a forecast is held to afterwards, and how it is widened by what was learned from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from agents.subject import Subject
from model.contract import ordered_paths, quantiles_of_ordered
from model.digits import six_digits
from model.forecast_trust import Outlook
from model.widening import widen

DEMAND: Final = "request.arrival_rate"
STEPS_AHEAD: Final = 4
_SAID: Final = (0.05, 0.5, 0.95)
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
    said = quantiles_of_ordered(ordered[:, ahead - 1], torch.tensor(_SAID))  # [B, 3]
    numbers = six_digits(said.numpy().astype(np.float64)).tolist()
    due = origin_ts_ms // step_ms - 1 + ahead
    lasts = [None if subject is None else subject.window.newest(DEMAND) for subject in spoken]
    return [
        None if last is None else Outlook(due, low, mid, high, last, source)
        for (low, mid, high), last, source in zip(numbers, lasts, sources, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Futures:
    """A forecast by step and indicator, its paths as they are, and in order.

    Attributes:
        values: float32 [B, H, C, S]; path s is one joint future over steps and indicators.
        ordered: [B, H, C, S], ascending along the last axis.
    """

    values: Tensor
    ordered: Tensor

    @property
    def paths(self) -> Tensor:
        """The values as [B, S, H, C], a view."""
        return self.values.movedim(-1, 1)


def widened_futures(paths: Tensor, factors: Sequence[float], lower: Tensor, upper: Tensor) -> Futures:
    """Every path moved away from the median of its step by the row's factor, within the indicators' bounds.

    Rows with factor 1 keep their bits.

    Args:
        paths: [B, S, H, C]; not changed.
        factors: B of them.
        lower, upper: [C].
    """
    values = paths.detach().to("cpu", torch.float32).movedim(1, -1).clone(memory_format=torch.contiguous_format)
    ordered = ordered_paths(values)
    if any(factor != 1.0 for factor in factors):
        middle = quantiles_of_ordered(ordered, torch.tensor([_MID]))[..., 0].numpy()
        how = np.array(factors, np.float32), lower.cpu().numpy(), upper.cpu().numpy()
        for numbers in (values, ordered):
            widen(numbers.numpy(), middle, *how)
    return Futures(values, ordered)
