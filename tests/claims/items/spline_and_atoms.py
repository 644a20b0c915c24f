"""Quality: spline marginals with atoms."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import ABLATIONS

CLAIM = Claim(
    id="spline-and-atoms",
    sentence="Splines with atoms forecast at least 2 % better than a Gaussian: CRPS of Fisher containers, "
    "seed by seed.",
    source="docs/lab/network.md",
    measured_by=ABLATIONS,
    figure=lambda its: its["arms"]["gaussian"]["fisher_crps"]["over_full"],
    bar=Bar(1.02),
    shown="{:.3f} ×",
    control="flat attention, with splines and atoms",
    control_figure=lambda its: its["arms"]["flat"]["fisher_crps"]["over_full"],
)
