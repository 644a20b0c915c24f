"""Quality: the CRPS that HARMONY published (Luo et al., arXiv 2408.01000)."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import FISHER

CLAIM = Claim(
    id="fisher-published-crps",
    sentence="Without training on it, the network has at most the CRPS published for HARMONY on the Fisher "
    "containers, 72 rows.",
    source="arXiv 2408.01000",
    measured_by=FISHER,
    figure=lambda its: its["network"]["crps_published_rows"],
    bar=Bar(0.0995, at_most=True),
    shown="{:.4f}",
    control="the seasonal naive",
    control_figure=lambda its: its["snaive"]["crps_published_rows"],
)
