"""Quality: never worse than an HPA on both counts."""

from __future__ import annotations

from collections.abc import Sequence

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_CELLS


def _worse(intervals: Sequence[float]) -> bool:
    """Whether attainment is surely lower and GPU-hours are surely more."""
    _, kept, cheaper, _ = intervals
    return kept < 0.0 < cheaper


def _turned(intervals: Sequence[float]) -> Sequence[float]:
    """The same comparison, seen from the HPA; the signs of ratios are enough here."""
    least, most, cheaper, dearer = intervals
    return (-most, -least, -dearer, -cheaper)


CLAIM = Claim(
    id="replay-not-worse-than-hpa",
    sentence="In no cell does HARMONY as shipped surely miss more and surely cost more than the tuned HPA "
    "(95 % intervals).",
    source="docs/lab/replay.md",
    measured_by=REPLAY_CELLS,
    figure=lambda its: sum(_worse(cell["harmony"]["against_hpa"]) for cell in its.values()),
    bar=Bar(0, at_most=True),
    shown="{:.0f} cells",
    control="the tuned HPA beside HARMONY",
    control_figure=lambda its: sum(_worse(_turned(cell["harmony"]["against_hpa"])) for cell in its.values()),
    is_open=True,
)
