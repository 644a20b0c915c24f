"""Speed: packed samples beside a loop on librdkafka."""

from __future__ import annotations

from statistics import median
from typing import Any

from tests.claims.claim import Bar, Claim
from tests.claims.measurements import INGEST


def _beside_confluent(results: Any, subject: str) -> float:
    """Rate over that of the confluent loop in the same round, median of the rounds."""
    subjects = results["packed"]["subjects"]
    rounds = zip(subjects[subject]["runs"], subjects["confluent loop"]["runs"], strict=True)
    return median(other["wall_s"] / mine["wall_s"] for mine, other in rounds)


CLAIM = Claim(
    id="ingest-packed-beside-confluent",
    sentence="With 256 samples a JSON record, ingest is 1.3 times as fast as a hand-written loop on librdkafka.",
    source="docs/lab/performance.md",
    measured_by=INGEST,
    figure=lambda its: _beside_confluent(its, "harmony"),
    bar=Bar(1.3),
    shown="{:.2f} ×",
    control="the hand-written aiokafka loop",
    control_figure=lambda its: _beside_confluent(its, "aiokafka loop"),
    is_open=True,
)
