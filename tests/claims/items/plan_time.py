"""Speed: the planner."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import EXHAUSTIVE, PLAN

CLAIM = Claim(
    id="plan-time",
    sentence="Two cores plan 10,000 workloads within a second.",
    source="docs/lab/performance.md",
    measured_by=PLAN,
    figure=lambda its: next(f for f in its["fleets"] if (f["workloads"], f["threads"]) == (10_000, 2))["wall_s"][
        "median"
    ],
    bar=Bar(1.0, at_most=True),
    shown="{:,.2f} s",
    control="each count of every workload simulated",
    control_figure=lambda its: its["exhaustive_s"],
    control_by=EXHAUSTIVE,
)
