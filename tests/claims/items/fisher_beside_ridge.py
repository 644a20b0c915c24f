"""Quality: the network beside a regression fitted on each container."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import FISHER

CLAIM = Claim(
    id="fisher-beside-ridge",
    sentence="Without training on it, the network has a lower CRPS than a ridge fitted on each of the Fisher "
    "containers.",
    source="docs/lab/network.md",
    measured_by=FISHER,
    figure=lambda its: its["network"]["crps"] / its["ridge_scaled"]["crps"],
    bar=Bar(1.0, at_most=True),
    shown="{:.3f} ×",
    control="the last value",
    control_figure=lambda its: its["last"]["crps"] / its["ridge_scaled"]["crps"],
)
