"""Quality: the second resolution of the context."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ABLATIONS

CLAIM = Claim(
    id="day-and-week-before",
    sentence="The day and the week before make forecasts at least 1 % better: WQL of rolling tasks, seed by seed.",
    source="docs/lab/network.md",
    measured_by=ABLATIONS,
    figure=lambda its: its["arms"]["single"]["rolling_wql"]["over_full"],
    bar=Bar(1.01),
    shown="{:.3f} ×",
    control="flat attention, with day and week",
    control_figure=lambda its: its["arms"]["flat"]["rolling_wql"]["over_full"],
)
