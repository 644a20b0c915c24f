"""Quality: the peak over the horizon."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ROLLING_ZERO_SHOT

CLAIM = Claim(
    id="rolling-served-peak",
    sentence="Network and ridge together have at most .58 of the peak loss of the seasonal naive, over 25 pairs.",
    source="docs/lab/network.md",
    measured_by=ROLLING_ZERO_SHOT,
    figure=lambda its: its["served"]["relative"]["peak95"],
    bar=Bar(0.58, at_most=True),
    shown="{:.3f}",
    control="the network alone",
    control_figure=lambda its: its["network"]["relative"]["peak95"],
)
