"""Safety: deaths and pauses of workers."""

from __future__ import annotations

from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import KILLS

CLAIM = Claim(
    id="kills-change-nothing",
    sentence="Workers that die or are paused before any record change no page, plan, decision or command.",
    source="docs/concepts/state.md",
    measured_by=KILLS,
    figure=failures,
    bar=Bar(0, at_most=True),
    shown="{:.0f} fault(s)",
    control="commit records before their outputs",
    control_figure=faults_found,
)
