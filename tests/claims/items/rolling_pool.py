"""Quality: the baselines that serve the first hours."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ROLLING

CLAIM = Claim(
    id="rolling-pool",
    sentence="The pool of baselines has a lower WQL than its ridge alone, over 25 pairs of task and horizon.",
    source="docs/evaluation.md",
    measured_by=ROLLING,
    figure=lambda its: its["served_pool"]["relative"]["wql"] / its["served_ridge"]["relative"]["wql"],
    bar=Bar(1.0, at_most=True),
    shown="{:.3f} ×",
    control="exponential smoothing",
    control_figure=lambda its: its["ewma"]["relative"]["wql"] / its["served_ridge"]["relative"]["wql"],
)
