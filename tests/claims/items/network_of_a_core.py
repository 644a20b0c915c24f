"""Speed: what the network takes of a core."""

from __future__ import annotations

from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INFERENCE


def _ms(results: Any, subject: str) -> float:
    """Milliseconds a window on a CPU, in batches of 64."""
    mine = (r for r in results if (r["device"], r["subject"], r["windows"]) == ("cpu", subject, 64))
    return next(mine)["us_per_window"] / 1000


CLAIM = Claim(
    id="network-of-a-core",
    sentence="Network and ridge together take at most 2 ms of a core per workload, in batches of 64.",
    source="docs/lab/network.md",
    measured_by=INFERENCE,
    figure=lambda its: _ms(its, "combined"),
    bar=Bar(2.0, at_most=True),
    shown="{:.1f} ms",
    control="the network in eager PyTorch",
    control_figure=lambda its: _ms(its, "eager"),
)
