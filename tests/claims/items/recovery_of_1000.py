"""Speed: recovery of 1,000 workloads."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import LATENCY, RECOVERY

CLAIM = Claim(
    id="recovery-of-1000",
    sentence="A worker killed with kill -9 decides again for the last of 1,000 workloads within 8 s.",
    source="docs/lab/performance.md",
    measured_by=RECOVERY,
    figure=lambda its: next(r for r in its if r["workloads"] == 1_000)["last_s"],
    bar=Bar(8.0, at_most=True),
    shown="{:.1f} s",
    control="a worker without its pages and commits reads the log again",
    control_figure=lambda its: next(r for r in its if (r["subject"], r["workloads"]) == ("harmony", 1_000))[
        "catch_up_s"
    ],
    control_by=LATENCY,
)
