"""Size: memory of a further workload."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import SCALE

CLAIM = Claim(
    id="memory-of-a-workload",
    sentence="A further workload takes at most 28 KB with both of its rings full.",
    source="docs/lab/performance.md",
    measured_by=SCALE,
    figure=lambda its: 1.024 * its["kb_per_workload"][-1],
    bar=Bar(28.0, at_most=True),
    shown="{:.1f} KB",
    control="rings of eight-byte cells, computed",
    control_figure=lambda its: 1.024 * (its["kb_per_workload"][-1] + its["ring_kb_per_workload"]),
)
