"""Quality: the network adapted to the Fisher containers."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import FISHER, FISHER_ADAPTED

CLAIM = Claim(
    id="fisher-adapted",
    sentence="Adapted to the containers, the network has a CRPS of at most .0595 on Fisher, 72 rows.",
    source="docs/lab/network.md",
    measured_by=FISHER_ADAPTED,
    figure=lambda its: its["adapted_network"]["crps"],
    bar=Bar(0.0595, at_most=True),
    shown="{:.4f}",
    control="the network without adaptation",
    control_figure=lambda its: its["network"]["crps"],
    control_by=FISHER,
    is_open=True,
)
