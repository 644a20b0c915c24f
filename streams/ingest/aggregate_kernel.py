"""Closing slots, compiled: from the samples of the pool to the columns of pages, slot after slot.

1. `collect_samples`, `admit_workloads`, `order_samples` and `split_by_series` bring the samples of a slot in order.
2. `update_counters`, `compute_rates` and `compute_gauges` turn them into indicator values of each source.
3. `combine_sources` and `combine_misses` turn these into indicator values of each workload.
4. `write_series` and `write_counters` write the columns of the page.

Names stay outside: a workload and a series are numbers, with their ranks in the order of names. Everything that lasts
between slots is read and written here as columns, so that slots that close together cost one call.

Sums run in a fixed order (sources by name, samples by time), one addition after the other. So equal samples give equal
bytes, in whatever order they arrived.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from streams.compiled import compiled
from streams.records.samples import Bools, Bytes, Floats, Ints, Shorts, Singles

SUM, MEAN, MAX = range(3)
OF_MEANS, OF_RATIOS, OF_MAXIMA = range(3)


class RuleTables(NamedTuple):
    """The rules of C counters, G gauges and N indicators, of which M are miss ratios.

    A plain indicator is a rate or a gauge, P of them, rates first. Fields are numbered as columns of the samples, and
    counters, in `rate_counters`, `good` and `total`, by their place in `counters`.

    Attributes:
        counters: [C] fields that only grow.
        rate_counters: [P - G, most fields] counters of which the first present one counts; -1 after the last.
        gauge_rule, gauge_fields: [G] what is made of one or, of ratios, two fields: [G, 2].
        plain_at, plain_combiner: [P] indicator, and what is made of all sources.
        miss_at, good, total: [M] indicator, and its two counters.
        busy: [2] the field that tells of requests in service, and, by its place in `counters`, the counter that grows
            while there are any; -1 where the source has none.
        cap: [1] largest share of one source in a sum, in means of the others; inf where there is none.
    """

    counters: Ints
    rate_counters: Ints
    gauge_rule: Ints
    gauge_fields: Ints
    plain_at: Ints
    plain_combiner: Ints
    miss_at: Ints
    good: Ints
    total: Ints
    busy: Ints
    cap: Floats


class SlotInputs(NamedTuple):
    """The m sources with samples in a slot, by workload and name, and their samples, by source and time.

    Attributes:
        samples: [n] rows of the pool.
        ts_ms, values: [n] and [n, F], copied out of the pool: there each sample lies elsewhere.
        told: [F] whether any sample of the slot has a value of the field.
        begins: [m + 1] the samples of source i are those from `begins[i]` to `begins[i + 1]`.
        series: [m] its number.
        firsts: [w + 1] the sources of the slot's i-th workload are those from `firsts[i]` to `firsts[i + 1]`.
    """

    samples: Ints
    ts_ms: Ints
    values: Floats
    told: Bools
    begins: Ints
    series: Ints
    firsts: Ints


class SourceValues(NamedTuple):
    """Indicator values of each source of a slot, by its place in the slot.

    Attributes:
        plain, plain_observed: [m, P].
        told: [P] whether the slot has any value for the indicator.
        good, total, miss_observed: [m, M] increases of the two counters of miss ratios.
        fell: [m, P - G + M] whether a counter of a rate or of a miss ratio, rates first, has started anew.
        censored: [m] whether a rate is that of another counter than its first.
        stuck: [m] whether the source only repeats its earlier values.
    """

    plain: Floats
    plain_observed: Bools
    told: Bools
    good: Floats
    total: Floats
    miss_observed: Bools
    fell: Bools
    censored: Bools
    stuck: Bools


class CounterDeltas(NamedTuple):
    """Change of each counter of each source within a slot, [m, C].

    Attributes:
        present: whether the slot holds a value of it.
        fell: whether it started anew.
        measured: whether there is an earlier value to compare with.
        amount, span_ms: increase, and the time over which it grew.
    """

    present: Bools
    fell: Bools
    measured: Bools
    amount: Floats
    span_ms: Floats


class CounterStates(NamedTuple):
    """State of every series between slots.

    Attributes:
        values: [capacity, C] newest value of each counter, NaN where none was observed.
        times: [capacity, C] event time of that value.
        last_slot: [capacity] newest closed slot that held the series.
    """

    values: Floats
    times: Ints
    last_slot: Ints


# Calling a compiled function costs as much as reading ten numbers, so each of these goes through a whole slot.


@compiled
def find_stuck(rules: RuleTables, inputs: SlotInputs, m: int, states: CounterStates, stuck: Bools) -> None:
    """Mark the stuck ones of m sources: requests are in service, but no counter has changed, not even that of tokens.

    The readings of such an exporter are as old as its last change. Taken as new they would say that there is no load.
    Once the exporter reads again, its counters catch up within one slot, and the load would seem many times too high.
    """
    counters, running, grows = rules.counters, rules.busy[0], rules.busy[1]
    values, begins, numbers, last_values = inputs.values, inputs.begins, inputs.series, states.values
    for i in range(m):
        stuck[i] = False
        if running < 0 or grows < 0:
            continue
        newest = values[begins[i + 1] - 1, counters[grows]]
        if newest > last_values[numbers[i], grows]:
            continue  # The source generates tokens, as nearly always.
        observed, repeats = False, True
        for j in range(begins[i], begins[i + 1]):
            repeats &= values[j, running] > 0.0  # False where the value is missing.
            observed |= not np.isnan(values[j, counters[grows]])
        for c in range(len(counters)):
            if not (repeats and observed):
                break
            for j in range(begins[i], begins[i + 1]):
                value = values[j, counters[c]]
                repeats &= np.isnan(value) or value == last_values[numbers[i], c]
        stuck[i] = repeats and observed


@compiled
def update_counters(
    rules: RuleTables, inputs: SlotInputs, m: int, states: CounterStates, stuck: Bools, deltas: CounterDeltas
) -> None:
    """Compute the counter deltas of m sources, oldest sample first, and update their states.

    A stuck source keeps the times of its last reading, so that its next increase covers the whole time since then.
    """
    values, ts_ms, begins, numbers = inputs.values, inputs.ts_ms, inputs.begins, inputs.series
    last_values, last_times = states.values, states.times
    present_out, fell_out, measured_out = deltas.present, deltas.fell, deltas.measured
    amount_out, span_out = deltas.amount, deltas.span_ms
    for c in range(len(rules.counters)):
        field = rules.counters[c]
        if not inputs.told[field]:
            present_out[:m, c], fell_out[:m, c], measured_out[:m, c] = False, False, False
            amount_out[:m, c], span_out[:m, c] = 0.0, 1.0
            continue
        for i in range(m):
            series = numbers[i]
            before, base_ms = last_values[series, c], last_times[series, c]
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
            present_out[i, c], fell_out[i, c], measured_out[i, c] = present, fell, grew
            amount_out[i, c] = last - base if present else 0.0
            span_out[i, c] = float(last_ms - base_ms) if grew else 1.0
            if present:
                last_values[series, c] = last
                last_times[series, c] = last_ms


@compiled
def compute_rates(
    rules: RuleTables, deltas: CounterDeltas, m: int, told_fields: Bools, per_source: SourceValues
) -> None:
    """Compute the rates of m sources, and the counter increases of their miss ratios."""
    rate_counters, good_of, total_of, told = rules.rate_counters, rules.good, rules.total, per_source.told
    present, fell, measured = deltas.present, deltas.fell, deltas.measured
    amount, span_ms = deltas.amount, deltas.span_ms
    plain, plain_observed, fell_out = per_source.plain, per_source.plain_observed, per_source.fell
    good_out, total_out, miss_observed = per_source.good, per_source.total, per_source.miss_observed
    num_rates = len(rate_counters)
    for r in range(num_rates):
        told[r] = False
        for k in range(rate_counters.shape[1]):
            told[r] |= rate_counters[r, k] >= 0 and told_fields[rules.counters[rate_counters[r, k]]]
    for i in range(m):
        stands_in = False
        for r in range(num_rates):
            if not told[r]:
                plain_observed[i, r], fell_out[i, r] = False, False
                continue
            counter = rate_counters[r, 0]
            for k in range(rate_counters.shape[1]):
                candidate = rate_counters[r, k]
                if candidate >= 0 and present[i, candidate]:
                    counter = candidate
                    stands_in |= k > 0
                    break
            plain[i, r] = amount[i, counter] * 1000.0 / span_ms[i, counter]
            plain_observed[i, r] = measured[i, counter]
            fell_out[i, r] = fell[i, counter]
        per_source.censored[i] = stands_in
        for q in range(len(good_of)):
            good, total = good_of[q], total_of[q]
            good_out[i, q] = amount[i, good]
            total_out[i, q] = amount[i, total]
            miss_observed[i, q] = measured[i, good] and measured[i, total]
            fell_out[i, num_rates + q] = fell[i, good] or fell[i, total]


@compiled
def compute_gauges(rules: RuleTables, inputs: SlotInputs, m: int, per_source: SourceValues) -> None:
    """Compute means, ratios and maxima of m sources, oldest sample first."""
    values, begins = inputs.values, inputs.begins
    plain, plain_observed, first, stuck = (
        per_source.plain,
        per_source.plain_observed,
        len(rules.rate_counters),
        per_source.stuck,
    )
    for g in range(len(rules.gauge_rule)):
        rule, field, other = rules.gauge_rule[g], rules.gauge_fields[g, 0], rules.gauge_fields[g, 1]
        per_source.told[first + g] = inputs.told[field]
        if not inputs.told[field]:
            plain_observed[:m, first + g] = False
            continue
        for i in range(m):
            count, total, top = 0, 0.0, -np.inf
            for j in range(begins[i], begins[i + 1]):
                value = values[j, field]
                if rule == OF_RATIOS:
                    divisor = values[j, other]
                    # A comparison with NaN is false.
                    value = min(value / divisor, 1.0) if divisor > 0.0 and not np.isnan(value) else np.nan
                if not np.isnan(value):
                    count += 1
                    total += value
                    top = max(top, value)
            plain[i, first + g] = (top if rule == OF_MAXIMA else total / count) if count else 0.0
            plain_observed[i, first + g] = count > 0 and not stuck[i]


@compiled
def source_limit(total: float, count: float, number: float, cap: float) -> float:
    """Upper limit of one source in a sum: `cap` times the mean of the `count` - 1 others; inf for fewer than three."""
    if count < 3.0:
        return np.inf
    # A counter that fell has a negative increase; what is made of it is masked.
    return max(cap * ((total - number) / (count - 1.0)), 0.0)


@compiled
def combine_sources(
    rules: RuleTables,
    per_source: SourceValues,
    firsts: Ints,
    rows: Ints,
    num_workloads: int,
    values: Singles,
    observed: Bools,
) -> None:
    """Write rates and gauges of workloads from the values of their sources.

    Args:
        firsts: [w + 1] sources of each workload, see `SlotInputs`.
        rows: [w] page row of each workload.
        values, observed: [k, N] out.
    """
    plain_at, plain_combiner, cap = rules.plain_at, rules.plain_combiner, rules.cap[0]
    plain, observed_at, fell, num_rates = (
        per_source.plain,
        per_source.plain_observed,
        per_source.fell,
        len(rules.rate_counters),
    )
    for w in range(num_workloads):
        row, first, end = rows[w], firsts[w], firsts[w + 1]
        for p in range(len(plain_at)):
            if not per_source.told[p]:
                continue
            number, count, top, started_anew = 0.0, 0.0, -np.inf, False
            for i in range(first, end):
                started_anew |= p < num_rates and fell[i, p]
                if observed_at[i, p]:
                    number += plain[i, p]
                    count += 1.0
                    top = max(top, plain[i, p])
            if not count or started_anew:
                continue
            combiner = plain_combiner[p]
            if combiner == MEAN:
                number /= count
            elif combiner == MAX:
                number = top
            elif cap < np.inf:
                total, number = number, 0.0
                for i in range(first, end):
                    if observed_at[i, p]:
                        number += min(plain[i, p], source_limit(total, count, plain[i, p], cap))
            # Adding 0 turns -0 into 0: equal numbers must be equal bytes.
            values[row, plain_at[p]] = np.float32(number) + np.float32(0.0)
            observed[row, plain_at[p]] = True


@compiled
def combine_misses(
    rules: RuleTables,
    per_source: SourceValues,
    firsts: Ints,
    rows: Ints,
    num_workloads: int,
    values: Singles,
    observed: Bools,
) -> None:
    """Write the miss ratios of workloads; arguments as of `combine_sources`."""
    miss_at, cap, num_rates = rules.miss_at, rules.cap[0], len(rules.rate_counters)
    goods, totals, observed_at, fell = per_source.good, per_source.total, per_source.miss_observed, per_source.fell
    for w in range(num_workloads):
        row, first, end = rows[w], firsts[w], firsts[w + 1]
        for q in range(len(miss_at)):
            total, count, started_anew = 0.0, 0.0, False
            for i in range(first, end):
                started_anew |= fell[i, num_rates + q]
                if observed_at[i, q]:
                    total += totals[i, q]
                    count += 1.0
            good, capped_total = 0.0, 0.0
            for i in range(first, end):
                if observed_at[i, q]:
                    own_good, own_total = goods[i, q], totals[i, q]
                    most = source_limit(total, count, own_total, cap) if cap < np.inf else np.inf
                    if own_total > most:
                        own_good = own_good * most / own_total
                        own_total = most
                    good += own_good
                    capped_total += own_total
            if capped_total > 0.0 and not started_anew:
                values[row, miss_at[q]] = np.float32(min(max(1.0 - good / capped_total, 0.0), 1.0)) + np.float32(0.0)
                observed[row, miss_at[q]] = True


# Samples of a slot by workload, source and time.

NEVER: Final = -(1 << 62)
ABSENT, _REFUSED = -1, -2


class ClosingLimits(NamedTuple):
    """The settings of the stream that closing needs."""

    step_ms: int
    context_steps: int
    source_silence_steps: int
    max_workloads: int
    max_undeclared: int
    num_namespaces: int


class NameTables(NamedTuple):
    """Tables of workload and series numbers.

    Attributes:
        last_seen: [W] newest closed slot that held each workload; `NEVER` for those of none.
        rank, namespace: [W] place of each workload in the order of names; its namespace, negative for declared ones.
        workload_of, series_rank: [capacity] workload of each series, and its place when they are ordered by workload
            and source.
    """

    last_seen: Ints
    rank: Ints
    namespace: Ints
    workload_of: Ints
    series_rank: Ints


class PooledSamples(NamedTuple):
    """The samples of the pool, by row.

    Attributes:
        series, ts_ms: [rows] series number and event time.
        values: [rows, F], NaN where missing.
        following: [rows] the next sample of the same slot, in log order; -1 after the last.
    """

    series: Ints
    ts_ms: Ints
    values: Floats
    following: Ints


class ClosingSlots(NamedTuple):
    """S slots to close, ascending: number, first row (-1: none) and samples; and where there was more than samples,
    every workload in order of first appearance: those of slot s are `order[order_cuts[s] : order_cuts[s + 1]]`."""

    slot: Ints
    head: Ints
    size: Ints
    order: Ints
    order_cuts: Ints


class Scratch(NamedTuple):
    """Working memory to close one slot of up to n samples.

    Attributes:
        row_of: [W] row of each workload; `ABSENT` everywhere before and after.
        pool_rows, workloads: [n] rows of the pool in log order, and their workloads.
        keys: [n] by which samples are ordered.
        order: [n] permutation that ordered the samples of an earlier slot, `num_ordered[0]` of them.
        rows: [n] page row of each workload with samples.
    """

    row_of: Ints
    pool_rows: Ints
    workloads: Ints
    keys: Ints
    order: Ints
    num_ordered: Ints
    inputs: SlotInputs
    rows: Ints
    per_source: SourceValues
    deltas: CounterDeltas


@compiled
def sort_by(keys: Ints, numbers: Ints, num: int) -> None:
    """Put the first `num` numbers in ascending order of their keys, `keys[number]`; what is in order stays as it is.

    Runs are merged, so that no order takes much longer than another. numba's own sorting takes longer to compile.
    """
    spare = np.empty(num, np.int64)
    width = 1
    while width < num:
        for first in range(0, num - width, 2 * width):
            middle, end = first + width, min(first + 2 * width, num)
            if keys[numbers[middle - 1]] <= keys[numbers[middle]]:
                continue
            for i in range(first, middle):
                spare[i] = numbers[i]
            left, right, at = first, middle, first
            while left < middle:
                if right < end and keys[numbers[right]] < keys[spare[left]]:
                    numbers[at] = numbers[right]
                    right += 1
                else:
                    numbers[at] = spare[left]
                    left += 1
                at += 1
        width *= 2


@compiled
def collect_samples(rows: PooledSamples, head: int, size: int, names: NameTables, scratch: Scratch) -> None:
    """Collect the rows of a slot in log order, and their workloads."""
    following, series_of, workload_of = rows.following, rows.series, names.workload_of
    pool_rows, workloads = scratch.pool_rows, scratch.workloads
    row = head
    for i in range(size):
        pool_rows[i] = row
        workloads[i] = workload_of[series_of[row]]
        row = following[row]


@compiled
def admit_workloads(closing: ClosingSlots, at: int, names: NameTables, limits: ClosingLimits, scratch: Scratch) -> Ints:
    """The workloads of a slot's page, by name: those of recent pages, and new ones while there is room.

    New ones are admitted in order of appearance, declared ones first. Undeclared ones share `max_undeclared`, and one
    namespace gets half of it. The others become `_REFUSED` in `row_of`.
    """
    last_seen, row_of, workloads, order = names.last_seen, scratch.row_of, scratch.workloads, closing.order
    oldest, namespace = closing.slot[at] - limits.context_steps, names.namespace
    room, most = limits.max_workloads, limits.max_undeclared
    num_known = np.zeros(limits.num_namespaces + 1, np.int64)  # the last one counts those declared
    for w in range(len(last_seen)):
        if last_seen[w] < oldest:
            last_seen[w] = NEVER
        else:
            room -= 1
            num_known[namespace[w]] += 1
    first, end = closing.order_cuts[at], closing.order_cuts[at + 1]
    num = end - first if end > first else closing.size[at]
    admitted = np.empty(num, np.int64)
    count = 0
    for turn in range(2):
        for i in range(num):
            w = order[first + i] if end > first else workloads[i]
            space, is_new = namespace[w], last_seen[w] == NEVER
            if row_of[w] != ABSENT or (turn == 0 and is_new and space >= 0):
                continue
            num_undeclared = limits.max_workloads - room - num_known[-1]
            is_over = space >= 0 and (num_undeclared >= most or num_known[space] >= (most + 1) // 2)
            if is_new and (room <= 0 or is_over):
                row_of[w] = _REFUSED
                continue
            room -= is_new
            num_known[space] += is_new
            row_of[w] = 0
            admitted[count] = w
            count += 1
    sort_by(names.rank, admitted, count)
    return admitted[:count]


@compiled
def order_samples(size: int, rows: PooledSamples, names: NameTables, step_ms: int, scratch: Scratch) -> int:
    """Order the samples of admitted workloads by workload, source and time, and return their number.

    Samples mostly arrive in the same sequence as in the slot before, so the order of that slot is tried first.
    """
    pool_rows, keys, order, inputs = scratch.pool_rows, scratch.keys, scratch.order, scratch.inputs
    workloads, row_of = scratch.workloads, scratch.row_of
    series_of, ts_ms, rank = rows.series, rows.ts_ms, names.series_rank
    samples, values, instants, ordered_values = inputs.samples, rows.values, inputs.ts_ms, inputs.values
    count = 0
    for i in range(size):
        row = pool_rows[i]
        if row_of[workloads[i]] >= 0:
            pool_rows[count] = row
            keys[count] = rank[series_of[row]] * step_ms + ts_ms[row] % step_ms
            count += 1
    ordered = scratch.num_ordered[0] == count
    i = 1
    while ordered and i < count:
        ordered = keys[order[i - 1]] < keys[order[i]]
        i += 1
    if not ordered:
        for i in range(count):
            order[i] = i
        sort_by(keys, order, count)
        scratch.num_ordered[0] = count
    for i in range(count):
        row = pool_rows[order[i]]
        samples[i], instants[i] = row, ts_ms[row]
        for f in range(values.shape[1]):
            ordered_values[i, f] = values[row, f]
    for f in range(values.shape[1]):
        inputs.told[f] = False
        for i in range(count):
            if not np.isnan(ordered_values[i, f]):
                inputs.told[f] = True
                break
    return count


@compiled
def split_by_series(count: int, rows: PooledSamples, names: NameTables, scratch: Scratch) -> tuple[int, int]:
    """Split ordered samples by series and workload, see `SlotInputs`; (how many series, how many workloads)."""
    series_of, workload_of, row_of, page_rows = rows.series, names.workload_of, scratch.row_of, scratch.rows
    inputs = scratch.inputs
    samples, begins, numbers, firsts = inputs.samples, inputs.begins, inputs.series, inputs.firsts
    m, num_workloads = 0, 0
    before, workload = NEVER, NEVER
    for j in range(count):
        series = series_of[samples[j]]
        if series == before:
            continue
        if workload_of[series] != workload:
            workload = workload_of[series]
            firsts[num_workloads], page_rows[num_workloads] = m, row_of[workload]
            num_workloads += 1
        begins[m], numbers[m] = j, series
        before = series
        m += 1
    begins[m], firsts[num_workloads] = count, m
    return m, num_workloads


# Columns of a page, in the shape in which pages hold them.

CENSORED, RESET = 1, 2
# Columns of `cuts`: whatever a slot's page has more than one of.
ROWS, SERIES, SAMPLES, CELLS, PRESENT, OLDER = range(6)


class PageColumns(NamedTuple):
    """Of the slots closed, one after the other: k rows of a page per workload, m per series, n samples.

    Attributes:
        cuts: [S + 1, 6] rows, series, samples, cells, bytes of `present` and rows of `older` of slot s are those from
            `cuts[s]` to `cuts[s + 1]`.
        refused: [S] samples of workloads that were not admitted.
        same: [S] whether workloads and series are those of the slot before it; False for the first.
        used: [S, C] counters that some series has.
        workload: [k] number; ascending by name.
        values, observed: [k, N].
        num_samples, newest_ms, sources_seen, sources_known, flags: [k] facts.
        series: [m] number; ascending by workload and source. `row` [m] of the page.
        series_ms: [m] event time of its newest sample.
        cells: [m * used] newest value of each counter in use, series by series, 0 where a series has none.
        present: one bit for each of a slot's cells, the highest first: whether there is a value.
        older: [.., 3] series of the page, counter and event time of values that the newest sample did not bring.
        sample_row: [n] row of the pool, by series and time; `sample_series` [n] its series within the slot.
    """

    cuts: Ints
    refused: Ints
    same: Bools
    used: Bools
    workload: Ints
    values: Singles
    observed: Bools
    num_samples: Shorts
    newest_ms: Ints
    sources_seen: Shorts
    sources_known: Shorts
    flags: Bytes
    series: Ints
    row: Shorts
    series_ms: Ints
    cells: Floats
    present: Bytes
    older: Ints
    sample_row: Ints
    sample_series: Ints


@compiled
def write_series(num_workloads: int, scratch: Scratch, out: PageColumns, first_row: int, first_m: int, n: int) -> None:
    """Write the series and samples of a slot, and the facts of their workloads."""
    inputs, per_source = scratch.inputs, scratch.per_source
    begins, firsts = inputs.begins, inputs.firsts
    for w in range(num_workloads):
        row, first, end = scratch.rows[w], firsts[w], firsts[w + 1]
        newest_ms, censored, fell, num_live = 0, False, False, 0
        for i in range(first, end):
            last_ms = inputs.ts_ms[begins[i + 1] - 1]
            out.series[first_m + i], out.row[first_m + i] = inputs.series[i], row - first_row
            out.series_ms[first_m + i] = last_ms
            newest_ms = max(newest_ms, last_ms)
            censored |= per_source.censored[i]
            num_live += not per_source.stuck[i]
            for q in range(per_source.fell.shape[1]):
                fell |= per_source.fell[i, q]
            for j in range(begins[i], begins[i + 1]):
                out.sample_row[n + j], out.sample_series[n + j] = inputs.samples[j], i
        out.num_samples[row], out.newest_ms[row] = begins[end] - begins[first], newest_ms
        out.sources_seen[row] = num_live
        out.flags[row] = CENSORED * censored + RESET * fell


@compiled
def write_counters(states: CounterStates, m: int, inputs: SlotInputs, out: PageColumns, at: int, first_m: int) -> None:
    """Write the counter states of a slot's m series: `used`, `cells`, `present`, `older` and their cuts."""
    values, times, used, cuts = states.values, states.times, out.used, out.cuts
    cells, series_ms, numbers = out.cells, out.series_ms, inputs.series
    first_cell, byte, num_older = cuts[at, CELLS], cuts[at, PRESENT], cuts[at, OLDER]
    columns = np.empty(values.shape[1], np.int64)
    num_used, num_fresh = 0, 0
    for c in range(values.shape[1]):
        there = False
        for i in range(m):
            if not np.isnan(values[numbers[i], c]):
                there = True
                break
        used[at, c] = there
        if there:
            columns[num_used] = c
            num_used += 1
    num_cells = m * num_used
    for u in range(num_used):
        c = columns[u]
        for i in range(m):
            value = values[numbers[i], c]
            there = not np.isnan(value)
            cells[first_cell + i * num_used + u] = value if there else 0.0
            num_fresh += there and times[numbers[i], c] == series_ms[first_m + i]
    num_bytes = (num_cells + 7) // 8
    for b in range(byte, byte + num_bytes):
        out.present[b] = 255
    if num_cells % 8:
        out.present[byte + num_bytes - 1] = (255 << (8 - num_cells % 8)) & 255
    if num_fresh < num_cells:
        for i in range(m):
            for u in range(num_used):
                c, bit = columns[u], i * num_used + u
                if np.isnan(values[numbers[i], c]):
                    out.present[byte + bit // 8] &= 255 - (128 >> bit % 8)
                elif times[numbers[i], c] != series_ms[first_m + i]:
                    out.older[num_older, 0], out.older[num_older, 1] = i, c
                    out.older[num_older, 2] = times[numbers[i], c]
                    num_older += 1
    cuts[at + 1, CELLS], cuts[at + 1, PRESENT] = first_cell + num_cells, byte + num_bytes
    cuts[at + 1, OLDER] = num_older


@compiled
def repeats_previous(numbers: Ints, before: int, first: int, end: int) -> bool:
    """Whether the numbers from `first` to `end` are those from `before` to `first`."""
    return np.array_equal(numbers[before:first], numbers[first:end])


# One slot after the other.


@compiled
def forget_series(states: CounterStates, oldest: int) -> None:
    """Reset the series without a sample since this slot."""
    last_slot = states.last_slot
    for series in range(len(last_slot)):
        if last_slot[series] < oldest and last_slot[series] != NEVER:
            last_slot[series] = NEVER
            states.values[series, :] = np.nan


@compiled
def count_live_sources(
    states: CounterStates, names: NameTables, row_of: Ints, since: int, sources_known: Shorts
) -> None:
    """Count the series with a sample since this slot for the rows of their workloads."""
    last_slot, workload_of = states.last_slot, names.workload_of
    for series in range(len(last_slot)):
        if last_slot[series] >= since:
            row = row_of[workload_of[series]]
            if row >= 0:
                sources_known[row] += 1


@compiled
def close_slots(
    closing: ClosingSlots, rows: PooledSamples, names: NameTables, states: CounterStates, rules: RuleTables,
    limits: ClosingLimits, scratch: Scratch, out: PageColumns,
) -> None:  # fmt: skip
    """Close slots: fill `out`, and update the states of series and the newest slots of workloads."""
    cuts, row_of, inputs = out.cuts, scratch.row_of, scratch.inputs
    cuts[0] = 0
    for s in range(len(closing.slot)):
        slot, size = closing.slot[s], closing.size[s]
        first_k, first_m, n = cuts[s, ROWS], cuts[s, SERIES], cuts[s, SAMPLES]
        collect_samples(rows, closing.head[s], size, names, scratch)
        admitted = admit_workloads(closing, s, names, limits, scratch)
        forget_series(states, slot - limits.context_steps)
        k = first_k
        for w in admitted:
            row_of[w] = k
            names.last_seen[w] = slot
            out.workload[k] = w
            out.values[k, :] = 0.0
            out.observed[k, :] = False
            out.num_samples[k], out.newest_ms[k], out.sources_seen[k], out.sources_known[k] = 0, 0, 0, 0
            out.flags[k] = 0
            k += 1
        count = order_samples(size, rows, names, limits.step_ms, scratch)
        out.refused[s] = size - count
        m, num_workloads = split_by_series(count, rows, names, scratch)
        find_stuck(rules, inputs, m, states, scratch.per_source.stuck)
        update_counters(rules, inputs, m, states, scratch.per_source.stuck, scratch.deltas)
        compute_rates(rules, scratch.deltas, m, inputs.told, scratch.per_source)
        compute_gauges(rules, inputs, m, scratch.per_source)
        combine_sources(rules, scratch.per_source, inputs.firsts, scratch.rows, num_workloads, out.values, out.observed)
        combine_misses(rules, scratch.per_source, inputs.firsts, scratch.rows, num_workloads, out.values, out.observed)
        for i in range(m):
            states.last_slot[inputs.series[i]] = slot
        write_series(num_workloads, scratch, out, first_k, first_m, n)
        write_counters(states, m, inputs, out, s, first_m)
        count_live_sources(states, names, row_of, slot - limits.source_silence_steps + 1, out.sources_known)
        for i in range(size):
            row_of[scratch.workloads[i]] = ABSENT
        for i in range(closing.order_cuts[s], closing.order_cuts[s + 1]):
            row_of[closing.order[i]] = ABSENT
        cuts[s + 1, ROWS], cuts[s + 1, SERIES], cuts[s + 1, SAMPLES] = k, first_m + m, n + count
        out.same[s] = (
            s > 0
            and repeats_previous(out.workload, cuts[s - 1, ROWS], first_k, k)
            and repeats_previous(out.series, cuts[s - 1, SERIES], first_m, first_m + m)
        )
