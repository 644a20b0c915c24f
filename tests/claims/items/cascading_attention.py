"""Quality: cascading attention, the core of the published HARMONY (arXiv 2408.01000)."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ABLATIONS

CLAIM = Claim(
    id="cascading-attention",
    sentence="Cascading attention forecasts at least 1 % better than flat attention: WQL of rolling tasks, "
    "seed by seed.",
    source="arXiv 2408.01000",
    measured_by=ABLATIONS,
    figure=lambda its: its["arms"]["flat"]["rolling_wql"]["over_full"],
    bar=Bar(1.01),
    shown="{:.3f} ×",
    control="the same network beside itself",
    control_figure=lambda its: its["arms"]["full"]["rolling_wql"]["over_full"],
    is_open=True,
)
