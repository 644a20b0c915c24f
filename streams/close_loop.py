"""Closing slots, compiled: from the pool's samples to the columns of pages, slot after slot.

Everything remembered between slots is read and written here as columns, so that slots that close together cost one
call. Names stay outside: a workload and a series are numbers, with their ranks when ordered by name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streams.close_rules import Growth, Remembered, RuleTables, Told, combine_misses, combine_plain, gauge, grow, tell
from streams.compiled import compiled
from streams.pool_loop import PoolRows, release, rows_from
from streams.sample_run import Bools, Bytes, Floats, Ints, Shorts, Singles

NEVER = -(1 << 62)
CENSORED, RESET = 1, 2
_ABSENT, _REFUSED = -1, -2


class Limits(NamedTuple):
    """Of the stream's settings, what closing needs."""

    step_ms: int
    context_steps: int
    source_silence_steps: int
    max_workloads: int


class Names(NamedTuple):
    """What is known of numbers.

    Attributes:
        last_seen: [W] newest closed slot that held each workload; `NEVER` for those of none.
        rank: [W] place of each workload when they are ordered by name.
        workload_of, series_rank: [capacity] workload of each series, and its place when they are ordered by workload
            and source.
    """

    last_seen: Ints
    rank: Ints
    workload_of: Ints
    series_rank: Ints


class Closing(NamedTuple):
    """S slots to close, ascending: number, first row (-1: none) and samples; and where there was more than samples,
    every workload in order of first appearance: those of slot s are `order[order_cuts[s] : order_cuts[s + 1]]`."""

    slot: Ints
    head: Ints
    size: Ints
    order: Ints
    order_cuts: Ints


class Columns(NamedTuple):
    """Of the slots closed, one after the other: k rows of a page per workload, m per series, n samples.

    Attributes:
        cuts: [S + 1, 3] rows, series and samples of slot s are those from `cuts[s]` to `cuts[s + 1]`.
        refused: [S] samples of workloads that were not admitted.
        workload: [k] number; ascending by name.
        values, observed: [k, N].
        num_samples, newest_ms, sources_seen, sources_known, flags: [k] facts.
        series: [m] number; ascending by workload and source. `row` [m] of the page.
        series_ms: [m] event time of its newest sample.
        counters, there, times: [m, C] newest value of each counter, 0 where none is `there`, and its event time.
        sample_row: [n] row of the pool, by series and time; `sample_series` [n] its series within the slot.
    """

    cuts: Ints
    refused: Ints
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
    counters: Floats
    there: Bools
    times: Ints
    sample_row: Ints
    sample_series: Ints


class Scratch(NamedTuple):
    """What one slot needs while it is closed: `row_of` [W] is `_ABSENT` everywhere before and after."""

    row_of: Ints
    told: Told
    growth: Growth
    fell: Bools


@compiled
def admit(closing: Closing, at: int, mine: Ints, names: Names, limits: Limits, row_of: Ints) -> Ints:
    """Workloads of a slot's page: known ones, and new ones in order of appearance while there is room; any order.

    In `row_of` those left out are `_REFUSED`.
    """
    oldest = closing.slot[at] - limits.context_steps
    room = limits.max_workloads
    for w in range(len(names.last_seen)):
        if names.last_seen[w] < oldest:
            names.last_seen[w] = NEVER
        else:
            room -= 1
    first, end = closing.order_cuts[at], closing.order_cuts[at + 1]
    num = end - first if end > first else len(mine)
    admitted = np.empty(num, np.int64)
    count = 0
    for i in range(num):
        w = closing.order[first + i] if end > first else mine[i]
        if row_of[w] != _ABSENT:
            continue
        known = names.last_seen[w] != NEVER
        if known or room > 0:
            room -= not known
            row_of[w] = 0
            admitted[count] = w
            count += 1
        else:
            row_of[w] = _REFUSED
    return admitted[:count]


@compiled
def forget_series(known: Remembered, oldest: int) -> None:
    """Drop the series not heard since this slot."""
    for series in range(len(known.heard)):
        if known.heard[series] < oldest and known.heard[series] != NEVER:
            known.heard[series] = NEVER
            known.values[series, :] = np.nan


@compiled
def in_order(found: Ints, rows: PoolRows, names: Names, row_of: Ints, step_ms: int) -> Ints:
    """The admitted ones of a slot's rows, by workload, source and time."""
    keys = np.empty(len(found), np.int64)
    kept = np.empty(len(found), np.int64)
    count = 0
    ascending = True
    for i in range(len(found)):
        series = rows.series[found[i]]
        if row_of[names.workload_of[series]] >= 0:
            kept[count] = found[i]
            keys[count] = names.series_rank[series] * step_ms + rows.ts_ms[found[i]] % step_ms
            ascending &= count == 0 or keys[count] > keys[count - 1]
            count += 1
    return kept[:count] if ascending else kept[:count][np.argsort(keys[:count])]


@compiled
def close_series(
    rules: RuleTables, rows: PoolRows, mine: Ints, series: int, known: Remembered, scratch: Scratch, at: int,
    out: Columns, m: int,
) -> bool:  # fmt: skip
    """What a source says, as place `at` of `scratch.told`, and what is remembered of it, as row m of the page."""
    grow(rules, rows, mine, known, series, scratch.growth)
    censored = tell(rules, scratch.growth, scratch.told, at, scratch.fell)
    gauge(rules, rows, mine, scratch.told, at)
    out.series[m] = series
    out.series_ms[m] = rows.ts_ms[mine[-1]]
    for c in range(len(rules.counters)):
        value = known.values[series, c]
        there = not np.isnan(value)
        out.there[m, c] = there
        out.counters[m, c] = value if there else 0.0
        out.times[m, c] = known.times[series, c]
    return censored


@compiled
def close_slots(
    closing: Closing, rows: PoolRows, names: Names, known: Remembered, rules: RuleTables, limits: Limits,
    scratch: Scratch, out: Columns,
) -> None:  # fmt: skip
    """Close slots: fill `out`, remember what they say, and give their rows back to the pool."""
    out.cuts[0] = 0
    row_of = scratch.row_of
    for s in range(len(closing.slot)):
        slot = closing.slot[s]
        k, m, n = out.cuts[s]
        first_k, first_m = k, m
        found = rows_from(rows, closing.head[s], closing.size[s])
        of_workload = names.workload_of[rows.series[found]]
        admitted = admit(closing, s, of_workload, names, limits, row_of)
        forget_series(known, slot - limits.context_steps)
        admitted = admitted[np.argsort(names.rank[admitted])]
        for w in admitted:
            row_of[w] = k
            names.last_seen[w] = slot
            out.workload[k] = w
            out.values[k, :] = 0.0
            out.observed[k, :] = False
            out.num_samples[k], out.newest_ms[k], out.sources_seen[k], out.sources_known[k] = 0, 0, 0, 0
            out.flags[k] = 0
            k += 1
        ordered = in_order(found, rows, names, row_of, limits.step_ms)
        out.refused[s] = len(found) - len(ordered)
        j = 0
        while j < len(ordered):
            w = names.workload_of[rows.series[ordered[j]]]
            row, of_first, first_j = row_of[w], m - first_m, j
            scratch.fell[:] = False
            censored = False
            newest_ms = 0
            while j < len(ordered) and names.workload_of[rows.series[ordered[j]]] == w:
                series, begin = rows.series[ordered[j]], j
                while j < len(ordered) and rows.series[ordered[j]] == series:
                    out.sample_row[n], out.sample_series[n] = ordered[j], m - first_m
                    n += 1
                    j += 1
                censored |= close_series(
                    rules, rows, ordered[begin:j], series, known, scratch, m - first_m, out, m
                )  # fmt: skip
                known.heard[series] = slot
                newest_ms = max(newest_ms, out.series_ms[m])
                out.row[m] = row - first_k
                m += 1
            told, fell, end = scratch.told, scratch.fell, m - first_m
            combine_plain(rules, told, of_first, end, fell, out.values[row], out.observed[row])
            combine_misses(rules, told, of_first, end, fell, out.values[row], out.observed[row])
            out.num_samples[row], out.newest_ms[row] = j - first_j, newest_ms
            out.sources_seen[row] = m - first_m - of_first
            out.flags[row] = CENSORED * censored + RESET * scratch.fell.any()
        heard_since = slot - limits.source_silence_steps + 1
        for series in range(len(known.heard)):
            if known.heard[series] >= heard_since:
                row = row_of[names.workload_of[series]]
                if row >= 0:
                    out.sources_known[row] += 1
        for w in of_workload:
            row_of[w] = _ABSENT
        for i in range(closing.order_cuts[s], closing.order_cuts[s + 1]):
            row_of[closing.order[i]] = _ABSENT
        if closing.size[s]:
            release(rows, closing.head[s])
        out.cuts[s + 1, 0], out.cuts[s + 1, 1], out.cuts[s + 1, 2] = k, m, n
