"""How many requests were good, read from a histogram of times to the first token where nobody counts them."""

from __future__ import annotations

from bisect import bisect_right

from agents.policy import Slo
from streams.records.facts import HistogramState


def slo_counters(slo: Slo, ttft: HistogramState) -> dict[str, float]:
    """`slo_good_total` and `slo_total` of a cumulative histogram in seconds.

    Between two bounds the count is interpolated, so both stay counters. The time per token is not judged: two
    histograms do not say which requests miss both promises and which only one.
    """
    return {"slo_good_total": _at_most(ttft, slo.ttft_s), "slo_total": ttft.count}


def _at_most(h: HistogramState, seconds: float) -> float:
    above = bisect_right(h.le, seconds)
    below_s, below = (h.le[above - 1], h.cumulative[above - 1]) if above else (0.0, 0.0)
    if above == len(h.le):
        # Beyond the last bound nothing is known of the rest: those are not called good.
        return below
    return below + (h.cumulative[above] - below) * (seconds - below_s) / (h.le[above] - below_s)
