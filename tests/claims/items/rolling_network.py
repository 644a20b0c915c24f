"""Quality: the network on telemetry that it has never seen."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ROLLING_ZERO_SHOT

CLAIM = Claim(
    id="rolling-network",
    sentence="Zero-shot, the network has at most half of the WQL of the seasonal naive, over 25 pairs of "
    "task and horizon.",
    source="docs/lab/network.md",
    measured_by=ROLLING_ZERO_SHOT,
    figure=lambda its: its["network"]["relative"]["wql"],
    bar=Bar(0.5, at_most=True),
    shown="{:.3f}",
    control="the pool of baselines",
    control_figure=lambda its: its["served_pool"]["relative"]["wql"],
)
