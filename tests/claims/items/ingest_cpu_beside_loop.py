"""Speed: CPU of ingest beside the loop that one would write by hand."""

from __future__ import annotations

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INGEST

CLAIM = Claim(
    id="ingest-cpu-beside-loop",
    sentence="With 256 samples a JSON record, ingest takes less CPU than a hand-written aiokafka loop.",
    source="docs/lab/performance.md",
    measured_by=INGEST,
    figure=lambda its: its["packed"]["subjects"]["harmony"]["cpu_ratio"],
    bar=Bar(1.0),
    shown="{:.2f} ×",
    control="one sample a record, beside packed ones",
    control_figure=lambda its: (
        its["packed"]["subjects"]["aiokafka loop"]["cpu_us_per_sample"]["median"]
        / its["single"]["subjects"]["harmony"]["cpu_us_per_sample"]["median"]
    ),
)
