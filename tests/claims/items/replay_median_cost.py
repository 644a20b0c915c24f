"""Quality: GPU-hours in replay."""

from __future__ import annotations

from tests.bench.replay_tables import standing
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_CELLS

CLAIM = Claim(
    id="replay-median-cost",
    sentence="HARMONY as shipped takes at most 1.12 times the GPU-hours of the best schedule (median of 18 cells).",
    source="docs/lab/replay.md",
    measured_by=REPLAY_CELLS,
    figure=lambda its: standing(its, "harmony").ratio,
    bar=Bar(1.12, at_most=True),
    shown="{:.2f} ×",
    control="a fixed fleet that is told the peak",
    control_figure=lambda its: standing(its, "static-peak").ratio,
    is_open=True,
)
