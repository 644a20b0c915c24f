"""Safety: constructs that run foreign code or skip checks."""

from __future__ import annotations

from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import UNSAFE_CODE

CLAIM = Claim(
    id="no-unsafe-code",
    sentence="No file unpickles, evaluates text, or skips the check of a certificate.",
    source="docs/security.md",
    measured_by=UNSAFE_CODE,
    figure=failures,
    bar=Bar(0, at_most=True),
    shown="{:.0f} fault(s)",
    control="lines that do",
    control_figure=faults_found,
)
