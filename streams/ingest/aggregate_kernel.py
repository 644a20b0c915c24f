"""Indicators of one workload in one slot, compiled: what each source says, then all of them together.

Sums run in a fixed order (sources by name, samples by time), one addition after the other, so that equal samples give
equal bytes however they arrived.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streams.compiled import compiled
from streams.records.samples import Bools, Floats, Ints, Singles

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
        busy: [2] the field that tells of requests in service, and, by its place in `counters`, the counter that grows
            while there are any; -1 where the source has none.
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
    busy: Ints
    cap: Floats


class Heard(NamedTuple):
    """The m sources heard in a slot, by workload and name, and their samples, by source and time.

    Attributes:
        samples: [n] rows of the pool.
        ts_ms, values: [n] and [n, F], copied out of the pool: there each sample lies elsewhere.
        begins: [m + 1] the samples of source i are those from `begins[i]` to `begins[i + 1]`.
        series: [m] its number.
        firsts: [w + 1] the sources of the slot's i-th workload are those from `firsts[i]` to `firsts[i + 1]`.
    """

    samples: Ints
    ts_ms: Ints
    values: Floats
    begins: Ints
    series: Ints
    firsts: Ints


class Told(NamedTuple):
    """What each source of a slot says, by its place in the slot.

    Attributes:
        plain, plain_known: [m, P].
        good, whole, miss_known: [m, M] the two counters of miss ratios.
        fell: [m, P - G + M] whether a counter of a rate or of a miss ratio, rates first, has started anew.
        censored: [m] whether a rate is that of another counter than its first.
        stuck: [m] whether it only repeats what was known.
    """

    plain: Floats
    plain_known: Bools
    good: Floats
    whole: Floats
    miss_known: Bools
    fell: Bools
    censored: Bools
    stuck: Bools


class Growth(NamedTuple):
    """What became of each counter of each source, [m, C]: whether it was heard, fell, or grew by `amount` over
    `span_ms`."""

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


# A call takes as long as ten numbers do: each of these goes through a whole slot, one rule after the other.


@compiled
def find_stuck(rules: RuleTables, heard: Heard, m: int, known: Remembered, stuck: Bools) -> None:
    """Which of m sources say that requests are served while no counter, tokens least of all, says anything new.

    What such an exporter reads is as old as its last change. Taken for new it would be no load at all, and a load many
    times too high once it is read again, for then the counters make up for it within one slot.
    """
    counters, running, grows = rules.counters, rules.busy[0], rules.busy[1]
    values, begins, numbers, known_values = heard.values, heard.begins, heard.series, known.values
    for i in range(m):
        stuck[i] = False
        if running < 0 or grows < 0:
            continue
        newest = values[begins[i + 1] - 1, counters[grows]]
        if newest > known_values[numbers[i], grows]:
            continue  # at work, as nearly always
        told, repeats = False, True
        for j in range(begins[i], begins[i + 1]):
            repeats &= values[j, running] > 0.0  # not where it is unknown
            told |= not np.isnan(values[j, counters[grows]])
        for c in range(len(counters)):
            if not (repeats and told):
                break
            for j in range(begins[i], begins[i + 1]):
                value = values[j, counters[c]]
                repeats &= np.isnan(value) or value == known_values[numbers[i], c]
        stuck[i] = repeats and told


@compiled
def grow(rules: RuleTables, heard: Heard, m: int, known: Remembered, stuck: Bools, growth: Growth) -> None:
    """Compare the counters of m sources, oldest sample first, with what is remembered, and remember them.

    Of a stuck one the times stay those at which it was read last, so that its next increase is one over all that time.
    """
    values, ts_ms, begins, numbers = heard.values, heard.ts_ms, heard.begins, heard.series
    known_values, known_times = known.values, known.times
    present_out, fell_out, known_out = growth.present, growth.fell, growth.known
    amount_out, span_out = growth.amount, growth.span_ms
    for c in range(len(rules.counters)):
        field = rules.counters[c]
        for i in range(m):
            series = numbers[i]
            before, base_ms = known_values[series, c], known_times[series, c]
            base, last, last_ms = before, before, base_ms
            present, fell = False, False
            for j in range(begins[i], begins[i + 1]):
                value = values[j, field]
                if not np.isnan(value) and not stuck[i]:
                    instant = ts_ms[j]
                    if np.isnan(base):
                        base, base_ms = value, instant
                    fell |= value < last
                    present, last, last_ms = True, value, instant
            grew = present and last_ms > base_ms
            present_out[i, c], fell_out[i, c], known_out[i, c] = present, fell, grew
            amount_out[i, c] = last - base if present else 0.0
            span_out[i, c] = float(last_ms - base_ms) if grew else 1.0
            if present:
                known_values[series, c] = last
                known_times[series, c] = last_ms


@compiled
def tell(rules: RuleTables, growth: Growth, m: int, told: Told) -> None:
    """Rates and miss ratios of m sources."""
    rate_counters, good_of, whole_of = rules.rate_counters, rules.good, rules.whole
    present, fell, known = growth.present, growth.fell, growth.known
    amount, span_ms = growth.amount, growth.span_ms
    plain, plain_known, fell_out, censored = told.plain, told.plain_known, told.fell, told.censored
    good_out, whole_out, miss_known = told.good, told.whole, told.miss_known
    num_rates = len(rate_counters)
    for i in range(m):
        stands_in = False
        for r in range(num_rates):
            counter = rate_counters[r, 0]
            for k in range(rate_counters.shape[1]):
                candidate = rate_counters[r, k]
                if candidate >= 0 and present[i, candidate]:
                    counter = candidate
                    stands_in |= k > 0
                    break
            plain[i, r] = amount[i, counter] * 1000.0 / span_ms[i, counter]
            plain_known[i, r] = known[i, counter]
            fell_out[i, r] = fell[i, counter]
        censored[i] = stands_in
        for q in range(len(good_of)):
            good, whole = good_of[q], whole_of[q]
            good_out[i, q] = amount[i, good]
            whole_out[i, q] = amount[i, whole]
            miss_known[i, q] = known[i, good] and known[i, whole]
            fell_out[i, num_rates + q] = fell[i, good] or fell[i, whole]


@compiled
def gauge(rules: RuleTables, heard: Heard, m: int, told: Told) -> None:
    """Means, ratios and maxima of m sources, oldest sample first."""
    values, begins = heard.values, heard.begins
    plain, plain_known, first, stuck = told.plain, told.plain_known, len(rules.rate_counters), told.stuck
    for g in range(len(rules.gauge_rule)):
        rule, field, other = rules.gauge_rule[g], rules.gauge_fields[g, 0], rules.gauge_fields[g, 1]
        for i in range(m):
            count, total, top = 0, 0.0, -np.inf
            for j in range(begins[i], begins[i + 1]):
                value = values[j, field]
                if rule == OF_RATIOS:
                    whole = values[j, other]
                    # A comparison with NaN is false.
                    value = min(value / whole, 1.0) if whole > 0.0 and not np.isnan(value) else np.nan
                if not np.isnan(value):
                    count += 1
                    total += value
                    top = max(top, value)
            plain[i, first + g] = (top if rule == OF_MAXIMA else total / count) if count else 0.0
            plain_known[i, first + g] = count > 0 and not stuck[i]


@compiled
def limit(total: float, count: float, number: float, cap: float) -> float:
    """`cap` times the mean of what all `count` sources but this one say: of three or more none counts for more."""
    if count < 3.0:
        return np.inf
    # A counter that fell has a negative increase; what is made of it is masked.
    return max(cap * ((total - number) / (count - 1.0)), 0.0)


@compiled
def combine_plain(
    rules: RuleTables, told: Told, firsts: Ints, rows: Ints, num_workloads: int, values: Singles, observed: Bools
) -> None:
    """Rates and gauges of workloads, at their `rows` [w] of [k, N] each, from what their sources say; see `Heard`."""
    plain_at, plain_how, cap = rules.plain_at, rules.plain_how, rules.cap[0]
    plain, known, fell, num_rates = told.plain, told.plain_known, told.fell, len(rules.rate_counters)
    for w in range(num_workloads):
        row, first, end = rows[w], firsts[w], firsts[w + 1]
        for p in range(len(plain_at)):
            number, count, top, started_anew = 0.0, 0.0, -np.inf, False
            for i in range(first, end):
                started_anew |= p < num_rates and fell[i, p]
                if known[i, p]:
                    number += plain[i, p]
                    count += 1.0
                    top = max(top, plain[i, p])
            if not count or started_anew:
                continue
            how = plain_how[p]
            if how == MEAN:
                number /= count
            elif how == MAX:
                number = top
            elif cap < np.inf:
                total, number = number, 0.0
                for i in range(first, end):
                    if known[i, p]:
                        number += min(plain[i, p], limit(total, count, plain[i, p], cap))
            # Adding 0 turns -0 into 0: equal numbers must be equal bytes.
            values[row, plain_at[p]] = np.float32(number) + np.float32(0.0)
            observed[row, plain_at[p]] = True


@compiled
def combine_misses(
    rules: RuleTables, told: Told, firsts: Ints, rows: Ints, num_workloads: int, values: Singles, observed: Bools
) -> None:
    """Miss ratios of workloads, as `combine_plain`."""
    miss_at, cap, num_rates = rules.miss_at, rules.cap[0], len(rules.rate_counters)
    told_good, told_whole, known, fell = told.good, told.whole, told.miss_known, told.fell
    for w in range(num_workloads):
        row, first, end = rows[w], firsts[w], firsts[w + 1]
        for q in range(len(miss_at)):
            total, count, started_anew = 0.0, 0.0, False
            for i in range(first, end):
                started_anew |= fell[i, num_rates + q]
                if known[i, q]:
                    total += told_whole[i, q]
                    count += 1.0
            good, whole = 0.0, 0.0
            for i in range(first, end):
                if known[i, q]:
                    mine_good, mine_whole = told_good[i, q], told_whole[i, q]
                    most = limit(total, count, mine_whole, cap) if cap < np.inf else np.inf
                    if mine_whole > most:
                        mine_good = mine_good * most / mine_whole
                        mine_whole = most
                    good += mine_good
                    whole += mine_whole
            if whole > 0.0 and not started_anew:
                values[row, miss_at[q]] = np.float32(min(max(1.0 - good / whole, 0.0), 1.0)) + np.float32(0.0)
                observed[row, miss_at[q]] = True
