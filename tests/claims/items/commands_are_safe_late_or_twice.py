"""Safety: commands that come late, twice or out of order."""

from __future__ import annotations

from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import COMMANDS

CLAIM = Claim(
    id="commands-are-safe-late-or-twice",
    sentence="A command that is applied late, twice or out of order never replaces a newer one.",
    source="docs/actuators.md",
    measured_by=COMMANDS,
    figure=failures,
    bar=Bar(0, at_most=True),
    shown="{:.0f} fault(s)",
    control="actuators without a guard or without memory",
    control_figure=faults_found,
)
