"""Speed: ingest beside the loop that one would write by hand."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INGEST

CLAIM = Claim(
    id="ingest-beside-loop",
    sentence="With one JSON sample a record, ingest is at least as fast as a hand-written aiokafka loop that "
    "validates nothing.",
    source="docs/lab/performance.md",
    measured_by=INGEST,
    figure=lambda its: its["single"]["subjects"]["harmony"]["ratio"]["median"],
    bar=Bar(0.95),
    shown="{:.2f} ×",
    control="Quix Streams",
    control_figure=lambda its: its["single"]["subjects"]["Quix Streams"]["ratio"]["median"],
)
