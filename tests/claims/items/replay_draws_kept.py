"""Quality: other draws of the same days."""

from __future__ import annotations

from typing import Any

from tests.bench.replay_cells import OBJECTIVE
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_DRAWS


def _kept(results: Any, policy: str) -> int:
    """Draws of all cells that keep the objective."""
    return sum(its >= OBJECTIVE for cell in results.values() for its in cell[policy]["attainment"])


CLAIM = Claim(
    id="replay-draws-kept",
    sentence="HARMONY as shipped meets an SLO of 99 % in all 20 draws: five of each of four days, at a lead "
    "time of 100 s.",
    source="docs/lab/replay.md",
    measured_by=REPLAY_DRAWS,
    figure=lambda its: _kept(its, "harmony"),
    bar=Bar(20),
    shown="{:.0f} draws",
    control="the tuned HPA",
    control_figure=lambda its: _kept(its, "hpa"),
)
