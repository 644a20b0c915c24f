"""Speed: CPU of a workload in fleets of any size."""

from __future__ import annotations

from typing import Any

from infra.lab.bench.scale import workload_us
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import SCALE


def _growth(results: Any, *, squared: bool) -> float:
    """The dearest over the cheapest fleet."""
    costs = [workload_us(f) * (f["workloads"] if squared else 1) for f in results]
    return max(costs) / min(costs)


CLAIM = Claim(
    id="cpu-as-fleets-grow",
    sentence="A workload costs at most 1.3 times as much CPU in a fleet of any size from 100 to 100,000, "
    "planned and decided.",
    source="docs/lab/performance.md",
    measured_by=SCALE,
    figure=lambda its: _growth(its["planned"]["fleets"], squared=False),
    bar=Bar(1.3, at_most=True),
    shown="{:.2f} ×",
    control="a stage that looks at the whole fleet for each workload, computed",
    control_figure=lambda its: _growth(its["planned"]["fleets"], squared=True),
)
