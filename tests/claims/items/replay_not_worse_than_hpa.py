"""Quality: never worse than an HPA on both counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_CELLS


def _worse(intervals: Sequence[float]) -> bool:
    """Whether attainment is surely lower and GPU-hours are surely more."""
    _, kept, cheaper, _ = intervals
    return kept < 0.0 < cheaper


def _worse_on_average(rule: Mapping[str, Any], beside: Mapping[str, Any]) -> bool:
    return bool(rule["attainment"] < beside["attainment"] and rule["gpu_hours"] > beside["gpu_hours"])


CLAIM = Claim(
    id="replay-not-worse-than-hpa",
    sentence="In no cell does HARMONY as shipped surely miss more and surely cost more than the tuned HPA "
    "(95 % intervals).",
    source="docs/lab/replay.md",
    measured_by=REPLAY_CELLS,
    figure=lambda its: sum(_worse(cell["harmony"]["against_hpa"]) for cell in its.values()),
    bar=Bar(0, at_most=True),
    shown="{:.0f} cells",
    control="KEDA's rule beside the tuned HPA, by their means",
    control_figure=lambda its: sum(_worse_on_average(cell["keda-queue"], cell["hpa"]) for cell in its.values()),
    is_open=True,
)
