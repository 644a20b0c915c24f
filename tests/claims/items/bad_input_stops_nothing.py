"""Safety: bytes that are made to crash a reader."""

from __future__ import annotations

from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import BAD_INPUT

CLAIM = Claim(
    id="bad-input-stops-nothing",
    sentence="No bytes make a reader raise or stall.",
    source="docs/security.md",
    measured_by=BAD_INPUT,
    figure=failures,
    bar=Bar(0, at_most=True),
    shown="{:.0f} fault(s)",
    control="readers that raise or stall",
    control_figure=faults_found,
)
