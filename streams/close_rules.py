"""Indicators of one workload in one slot, compiled: what each source says, then all of them together.

Sums run in a fixed order (sources by name, samples by time), one addition after the other, so that equal samples give
equal bytes however they arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streams.compiled import compiled
from streams.pool_loop import PoolRows
from streams.sample_run import Bools, Floats, Ints, Singles

SUM, MEAN, MAX = range(3)
OF_MEANS, OF_RATIOS, OF_MAXIMA = range(3)


class RuleTables(NamedTuple):
    """The rules of C counters, G gauges and N indicators, of which M are miss ratios.

    A plain indicator is a rate or a gauge, P of them, rates first. Fields are numbered as columns of the samples, and
    counters, in `rate_counters`, `good` and `whole`, by their place in `counters`.

    Attributes:
        counters: [C] fields that only grow.
        rate_counters: [P - G, most fields] counters of which the first present one counts; -1 after the last.
        gauge_rule, gauge_fields: [G] what is made of one or, of ratios, two fields: [G, 2].
        plain_at, plain_how: [P] indicator, and what is made of all sources.
        miss_at, good, whole: [M] indicator, and its two counters.
        cap: [1] largest share of one source in a sum, in means of the others; inf where there is none.
    """

    counters: Ints
    rate_counters: Ints
    gauge_rule: Ints
    gauge_fields: Ints
    plain_at: Ints
    plain_how: Ints
    miss_at: Ints
    good: Ints
    whole: Ints
    cap: Floats


class Told(NamedTuple):
    """What each source of a slot says, by its place in the slot: [m, P], [m, P], and of miss ratios [m, M] each."""

    plain: Floats
    plain_known: Bools
    good: Floats
    whole: Floats
    miss_known: Bools


class Growth(NamedTuple):
    """What became of each counter of a source, [C]: whether it was heard, fell, or grew by `amount` over `span_ms`."""

    present: Bools
    fell: Bools
    known: Bools
    amount: Floats
    span_ms: Floats


class Remembered(NamedTuple):
    """Newest value of each counter of each series, [capacity, C], NaN where none was heard, and its event time; and the
    newest closed slot that held the series, [capacity]."""

    values: Floats
    times: Ints
    heard: Ints


@compiled
def grow(rules: RuleTables, rows: PoolRows, mine: Ints, known: Remembered, series: int, growth: Growth) -> None:
    """Compare the counters of a source's samples `mine`, oldest first, with what is remembered, and remember them."""
    for c in range(len(rules.counters)):
        field = rules.counters[c]
        before = known.values[series, c]
        base, base_ms = before, known.times[series, c]
        started = not np.isnan(before)
        last, last_ms = before, base_ms
        present, fell = False, False
        for j in range(len(mine)):
            value = rows.values[mine[j], field]
            if np.isnan(value):
                continue
            instant = rows.ts_ms[mine[j]]
            if not started:
                started, base, base_ms = True, value, instant
            if value < last:
                fell = True
            present, last, last_ms = True, value, instant
        grew = present and last_ms > base_ms
        growth.present[c] = present
        growth.fell[c] = fell
        growth.known[c] = grew
        growth.amount[c] = last - base if present else 0.0
        growth.span_ms[c] = float(last_ms - base_ms) if grew else 1.0
        if present:
            known.values[series, c] = last
            known.times[series, c] = last_ms


@compiled
def tell(rules: RuleTables, growth: Growth, told: Told, at: int, fell: Bools) -> bool:
    """Rates and miss ratios of source `at`; marks the indicators of which a counter `fell`.

    Returns whether a rate is that of another counter than its first.
    """
    censored = False
    for r in range(len(rules.rate_counters)):
        counter = rules.rate_counters[r, 0]
        for k in range(rules.rate_counters.shape[1]):
            candidate = rules.rate_counters[r, k]
            if candidate >= 0 and growth.present[candidate]:
                counter = candidate
                censored |= k > 0
                break
        told.plain[at, r] = growth.amount[counter] * 1000.0 / growth.span_ms[counter]
        told.plain_known[at, r] = growth.known[counter]
        fell[rules.plain_at[r]] |= growth.fell[counter]
    for m in range(len(rules.miss_at)):
        good, whole = rules.good[m], rules.whole[m]
        told.good[at, m] = growth.amount[good]
        told.whole[at, m] = growth.amount[whole]
        told.miss_known[at, m] = growth.known[good] and growth.known[whole]
        fell[rules.miss_at[m]] |= growth.fell[good] or growth.fell[whole]
    return censored


@compiled
def gauge(rules: RuleTables, rows: PoolRows, mine: Ints, told: Told, at: int) -> None:
    """Means, ratios and maxima of source `at` over its samples `mine`, oldest first."""
    first = len(rules.rate_counters)
    for g in range(len(rules.gauge_rule)):
        rule, field, other = rules.gauge_rule[g], rules.gauge_fields[g, 0], rules.gauge_fields[g, 1]
        count, total, top = 0, 0.0, -np.inf
        for j in range(len(mine)):
            value = rows.values[mine[j], field]
            if rule == OF_RATIOS:
                whole = rows.values[mine[j], other]
                # A comparison with NaN is false.
                value = min(value / whole, 1.0) if whole > 0.0 and not np.isnan(value) else np.nan
            if not np.isnan(value):
                count += 1
                total += value
                top = max(top, value)
        told.plain[at, first + g] = (top if rule == OF_MAXIMA else total / count) if count else 0.0
        told.plain_known[at, first + g] = count > 0


@compiled
def limit(total: float, count: float, number: float, cap: float) -> float:
    """`cap` times the mean of what all `count` sources but this one say: of three or more none counts for more."""
    if count < 3.0:
        return np.inf
    # A counter that fell has a negative increase; what is made of it is masked.
    return max(cap * ((total - number) / (count - 1.0)), 0.0)


@compiled
def added(numbers: Floats, known: Bools, column: int, first: int, end: int) -> tuple[float, float]:
    """Sum and number of what sources `first` to `end` say."""
    total, count = 0.0, 0.0
    for i in range(first, end):
        if known[i, column]:
            total += numbers[i, column]
            count += 1.0
    return total, count


@compiled
def combine_plain(
    rules: RuleTables, told: Told, first: int, end: int, fell: Bools, values: Singles, observed: Bools
) -> None:
    """Rates and gauges of a workload, into [N] each, from what its sources `first` to `end` say."""
    cap = rules.cap[0]
    for p in range(len(rules.plain_at)):
        how, at = rules.plain_how[p], rules.plain_at[p]
        number, count = added(told.plain, told.plain_known, p, first, end)
        if not count or fell[at]:
            continue
        if how == MEAN:
            number /= count
        elif how == MAX:
            number = -np.inf
            for i in range(first, end):
                if told.plain_known[i, p]:
                    number = max(number, told.plain[i, p])
        elif cap < np.inf:
            total, number = number, 0.0
            for i in range(first, end):
                if told.plain_known[i, p]:
                    number += min(told.plain[i, p], limit(total, count, told.plain[i, p], cap))
        # Adding 0 turns -0 into 0: equal numbers must be equal bytes.
        values[at] = np.float32(number) + np.float32(0.0)
        observed[at] = True


@compiled
def combine_misses(
    rules: RuleTables, told: Told, first: int, end: int, fell: Bools, values: Singles, observed: Bools
) -> None:
    """Miss ratios of a workload, into [N] each, from what its sources `first` to `end` say."""
    cap = rules.cap[0]
    for m in range(len(rules.miss_at)):
        at = rules.miss_at[m]
        total, count = added(told.whole, told.miss_known, m, first, end)
        good, whole = 0.0, 0.0
        for i in range(first, end):
            if told.miss_known[i, m]:
                mine_good, mine_whole = told.good[i, m], told.whole[i, m]
                most = limit(total, count, mine_whole, cap) if cap < np.inf else np.inf
                if mine_whole > most:
                    mine_good = mine_good * most / mine_whole
                    mine_whole = most
                good += mine_good
                whole += mine_whole
        if whole > 0.0 and not fell[at]:
            values[at] = np.float32(min(max(1.0 - good / whole, 0.0), 1.0)) + np.float32(0.0)
            observed[at] = True
