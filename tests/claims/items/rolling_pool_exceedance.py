"""Quality: how often the .95 peak is exceeded."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ROLLING

CLAIM = Claim(
    id="rolling-pool-exceedance",
    sentence="Demand exceeds the .95 peak of the pool of baselines in at most 6 % of the cases.",
    source="docs/evaluation.md",
    measured_by=ROLLING,
    figure=lambda its: its["served_pool"]["peak_exceedance_95"],
    bar=Bar(0.06, at_most=True),
    shown="{:.3f}",
    control="the last value",
    control_figure=lambda its: its["last"]["peak_exceedance_95"],
)
