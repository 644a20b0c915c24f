"""Quality: the planner finds the cheapest count."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import PLAN, PLAN_FEW_PATHS

CLAIM = Claim(
    id="plan-best",
    sentence="Of 20 plans held against a simulation of every count, none names a worse count.",
    source="docs/lab/performance.md",
    measured_by=PLAN,
    figure=lambda its: its["exhaustive"]["wrong"],
    bar=Bar(0, at_most=True),
    shown="{:.0f} worse",
    control="16 sample paths in place of 256",
    control_figure=lambda its: its["exhaustive"]["wrong"],
    control_by=PLAN_FEW_PATHS,
)
