"""Quality: who meets the SLO most often."""

from __future__ import annotations

from typing import Any

from tests.bench.replay_tables import standing
from tests.claims.claim import Bar, Claim
from tests.claims.measurements import REPLAY_CELLS


def _ahead(results: Any, policy: str) -> int:
    """Cells kept more than by the best other policy that is neither told the peak nor another setting of HARMONY."""
    told = ("static-peak", policy)
    others = {name for cell in results.values() for name in cell if name not in told and "harmony" not in name}
    return standing(results, policy).kept - max(standing(results, name).kept for name in others)


CLAIM = Claim(
    id="replay-most-often",
    sentence="Of the policies that do not know the peak, HARMONY as shipped meets the SLO most often: six "
    "loads at three lead times.",
    source="README.md",
    measured_by=REPLAY_CELLS,
    figure=lambda its: _ahead(its, "harmony"),
    bar=Bar(1),
    shown="{:+.0f} cells",
    control="the tuned HPA",
    control_figure=lambda its: _ahead(its, "hpa"),
)
