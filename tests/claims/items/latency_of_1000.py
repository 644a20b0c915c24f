"""Speed: tick to decision."""

from __future__ import annotations

from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import LATENCY


def _harmony(results: Any) -> Any:
    """The run of 1,000 workloads."""
    return next(r for r in results if (r["subject"], r["workloads"]) == ("harmony", 1_000))


CLAIM = Claim(
    id="latency-of-1000",
    sentence="From the tick that closes a slot to the decision, 1,000 workloads at 5,000 samples/s take at "
    "most 200 ms (p99).",
    source="docs/lab/performance.md",
    measured_by=LATENCY,
    figure=lambda its: _harmony(its)["p99_ms"],
    bar=Bar(200.0, at_most=True),
    shown="{:,.0f} ms",
    control="a worker that has the history still to read",
    control_figure=lambda its: 1000 * _harmony(its)["catch_up_s"],
    is_open=True,
)
