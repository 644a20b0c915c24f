"""Speed: one JSON record per sample."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INGEST

CLAIM = Claim(
    id="ingest-json-rate",
    sentence="One process reads 200,000 JSON samples a second, one sample a record, into acknowledged pages.",
    source="docs/lab/performance.md",
    measured_by=INGEST,
    figure=lambda its: its["single"]["subjects"]["harmony"]["samples_per_s"]["median"],
    bar=Bar(200_000),
    shown="{:,.0f} samples/s",
    control="a plain Faust agent",
    control_figure=lambda its: its["single"]["subjects"]["plain Faust"]["samples_per_s"]["median"],
)
