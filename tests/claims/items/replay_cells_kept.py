"""Quality: the SLO in replay."""

from __future__ import annotations

from tests.bench.replay_tables import standing
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_CELLS

CLAIM = Claim(
    id="replay-cells-kept",
    sentence="HARMONY as shipped meets an SLO of 99 % in all 18 cells: six loads at three lead times.",
    source="docs/lab/replay.md",
    measured_by=REPLAY_CELLS,
    figure=lambda its: standing(its, "harmony").kept,
    bar=Bar(18),
    shown="{:.0f} cells",
    control="the tuned HPA",
    control_figure=lambda its: standing(its, "hpa").kept,
    is_open=True,
)
