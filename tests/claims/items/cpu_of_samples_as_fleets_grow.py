"""Speed: CPU of a sample in fleets of any size."""

from __future__ import annotations

from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import SCALE


def _growth(fleets: Any, *, squared: bool) -> float:
    """The dearest over the cheapest fleet."""
    costs = [f["ingest_us_per_sample"]["median"] * (f["workloads"] if squared else 1) for f in fleets]
    return max(costs) / min(costs)


CLAIM = Claim(
    id="cpu-of-samples-as-fleets-grow",
    sentence="A sample costs at most 1.3 times as much CPU in a fleet of any size from 100 to 100,000.",
    source="docs/lab/performance.md",
    measured_by=SCALE,
    figure=lambda its: _growth(its["fleets"], squared=False),
    bar=Bar(1.3, at_most=True),
    shown="{:.2f} ×",
    control="a fold that looks at the whole fleet for each sample, computed",
    control_figure=lambda its: _growth(its["fleets"], squared=True),
    is_open=True,
)
