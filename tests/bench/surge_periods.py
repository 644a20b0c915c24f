"""Surges of a load, and the periods believed of them: `python -m tests.bench.surge_periods RATE [--mean-rate R]`.

RATE is a rate file of `harmony replay`, or one that is built in. One draw of its arrivals is counted by steps of 15 s
and shown to what remembers surges, as a worker would. On loads of people nothing should be believed to keep a period
by the clock; on `hourly` the third surge should be expected.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from infra.replay.rates import read_rates
from model.recurring_surges import RecurringSurges

STEP_MS, CONTEXT, AHEAD_STEPS = 15_000, 128, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rate")
    parser.add_argument("--mean-rate", type=float)
    parser.add_argument("--days", type=int, default=14, help="how many of its days, at most")
    asked = parser.parse_args()
    profile = read_rates(asked.rate)
    profile = profile.between(0.0, min(profile.end_s, asked.days * 86_400.0))
    arrivals = (profile if asked.mean_rate is None else profile.thinned(asked.mean_rate)).arrivals(0).arrival_s
    steps = int(profile.end_s * 1000) // STEP_MS
    counts = np.histogram(arrivals * 1000, np.arange(steps + 1) * STEP_MS)[0]
    rates = np.concatenate([np.zeros(CONTEXT), counts / (STEP_MS / 1000)]).astype(np.float32)[:, None]
    known = (np.arange(len(rates)) >= CONTEXT)[:, None]
    surges, remembered, expecting, periods = RecurringSurges(), set[float](), 0, Counter[int]()
    for step in range(1, steps + 1):
        window, now_ms = slice(step, step + CONTEXT), step * STEP_MS
        surges.observe(rates[window], known[window], (0,), now_ms, STEP_MS)
        expected = surges.expected(now_ms, now_ms + AHEAD_STEPS * STEP_MS, STEP_MS)
        expecting += bool(expected)
        periods.update({one.recurrence.period_ms // 60_000 for one in expected})
        if step % CONTEXT == 0 or step == steps:
            remembered.update(row[0] for row in surges.snapshot()[1:])
    print(f"{steps:,} steps of {STEP_MS / 1000:g} s, {len(remembered)} surges, {expecting:,} steps with one expected")
    for minutes, number in sorted(periods.items()):
        print(f"  period of {minutes} min: {number:,} steps")


if __name__ == "__main__":
    main()
