"""Surges of a load, and the periods believed of them: `python -m tests.bench.surge_periods RATE [--mean-rate R]`.

RATE is a rate file of `harmony replay`, or one that is built in. One draw of its arrivals is counted by steps of 15 s
and shown to what remembers surges, as a worker would. On loads of people nothing should be believed to keep a period
by the clock; on `hourly` the third surge should be expected.
"""

from __future__ import annotations

import argparse
from collections import Counter

from infra.lab.replay.setting import observe_steps, rates_of
from infra.simulator.rate_files import read_rates
from model.bursts.recurring import RecurringSurges

STEP_MS, AHEAD_STEPS = 15_000, 16
LOOK_MS = 1_920_000  # before the oldest of those remembered is forgotten


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rate")
    parser.add_argument("--mean-rate", type=float)
    parser.add_argument("--days", type=int, default=14, help="how many of its days, at most")
    asked = parser.parse_args()
    profile = read_rates(asked.rate)
    profile = profile.between(0.0, min(profile.end_s, asked.days * 86_400.0))
    drawn = (profile if asked.mean_rate is None else profile.thinned(asked.mean_rate)).arrivals(0)
    steps = int(profile.end_s * 1000) // STEP_MS
    rates = rates_of(drawn, profile.end_s, STEP_MS / 1000)
    starts, expecting, periods = set[float](), 0, Counter[int]()
    surges = RecurringSurges()
    for end_ms in observe_steps(surges, rates, steps * STEP_MS, STEP_MS):
        expected = surges.expected(end_ms, end_ms + AHEAD_STEPS * STEP_MS, STEP_MS)
        expecting += bool(expected)
        periods.update({one.recurrence.period_ms // 60_000 for one in expected})
        if end_ms % LOOK_MS == 0 or end_ms == steps * STEP_MS:
            starts.update(row[0] for row in surges.snapshot()[1:])
    print(f"{steps:,} steps of {STEP_MS / 1000:g} s, {len(starts)} surges, {expecting:,} steps with one expected")
    for minutes, number in sorted(periods.items()):
        print(f"  period of {minutes} min: {number:,} steps")


if __name__ == "__main__":
    main()
