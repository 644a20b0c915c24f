"""Speed: binary columns beside fetching alone."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INGEST

CLAIM = Claim(
    id="ingest-binary-of-fetch",
    sentence="With binary columns, ingest reaches half of the rate at which messages can be fetched at all.",
    source="docs/lab/performance.md",
    measured_by=INGEST,
    figure=lambda its: its["binary"]["subjects"]["harmony"]["ratio"]["median"],
    bar=Bar(0.5),
    shown="{:.2f} ×",
    control="JSON columns",
    control_figure=lambda its: (
        its["packed"]["subjects"]["harmony"]["samples_per_s"]["median"]
        / its["binary"]["subjects"]["fetch only"]["samples_per_s"]["median"]
    ),
    is_open=True,
)
