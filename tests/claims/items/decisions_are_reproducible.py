"""Safety: the same input gives the same records."""

from __future__ import annotations

from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPRODUCIBLE

CLAIM = Claim(
    id="decisions-are-reproducible",
    sentence="The same input gives the same records, and each decision follows again from its recorded situation.",
    source="docs/concepts/decision.md",
    measured_by=REPRODUCIBLE,
    figure=failures,
    bar=Bar(0, at_most=True),
    shown="{:.0f} fault(s)",
    control="a changed byte",
    control_figure=faults_found,
)
