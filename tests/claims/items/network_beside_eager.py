"""Speed: the network on a CPU."""

from __future__ import annotations

from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INFERENCE


def _over_eager(results: Any, subject: str) -> float:
    """The least gain of all batches of more than one window."""
    mine = [r for r in results if (r["device"], r["subject"]) == ("cpu", subject) and r["windows"] > 1]
    return min(1 / r["of_eager"] for r in mine)


CLAIM = Claim(
    id="network-beside-eager",
    sentence="The network in batches on a CPU is at least twice as fast as the same network in eager PyTorch.",
    source="docs/adr/0016-compiled-loops-around-the-network.md",
    measured_by=INFERENCE,
    figure=lambda its: _over_eager(its, "network"),
    bar=Bar(2.0),
    shown="{:.1f} ×",
    control="eager PyTorch",
    control_figure=lambda its: _over_eager(its, "eager"),
)
