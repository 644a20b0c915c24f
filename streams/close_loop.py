"""Closing slots, compiled: from the pool's samples to the columns of pages, slot after slot.

Everything remembered between slots is read and written here as columns, so that slots that close together cost one
call. Names stay outside: a workload and a series are numbers, with their ranks when ordered by name.
"""

from __future__ import annotations

import numpy as np

from streams.close_columns import ROWS, SAMPLES, SERIES, Columns, is_same, put_counters, put_sources
from streams.close_order import ABSENT, NEVER, Closing, Limits, Names, Scratch, admit, divide, find, in_order
from streams.compiled import compiled
from streams.ingest.aggregate_kernel import (
    Remembered,
    RuleTables,
    combine_misses,
    combine_plain,
    find_stuck,
    gauge,
    grow,
    tell,
)
from streams.ingest.pool_kernel import PoolRows, release
from streams.records.samples import Ints, Shorts


@compiled
def forget_series(known: Remembered, oldest: int) -> None:
    """Drop the series not heard since this slot."""
    heard = known.heard
    for series in range(len(heard)):
        if heard[series] < oldest and heard[series] != NEVER:
            heard[series] = NEVER
            known.values[series, :] = np.nan


@compiled
def count_known(known: Remembered, names: Names, row_of: Ints, since: int, sources_known: Shorts) -> None:
    """Count the series heard since this slot for the rows of their workloads."""
    heard, workload_of = known.heard, names.workload_of
    for series in range(len(heard)):
        if heard[series] >= since:
            row = row_of[workload_of[series]]
            if row >= 0:
                sources_known[row] += 1


@compiled
def close_slots(
    closing: Closing, rows: PoolRows, names: Names, known: Remembered, rules: RuleTables, limits: Limits,
    scratch: Scratch, out: Columns,
) -> None:  # fmt: skip
    """Close slots: fill `out`, remember what they say, and give their rows back to the pool."""
    cuts, row_of, heard = out.cuts, scratch.row_of, scratch.heard
    cuts[0] = 0
    for s in range(len(closing.slot)):
        slot, size = closing.slot[s], closing.size[s]
        first_k, first_m, n = cuts[s, ROWS], cuts[s, SERIES], cuts[s, SAMPLES]
        find(rows, closing.head[s], size, names, scratch)
        admitted = admit(closing, s, names, limits, scratch)
        forget_series(known, slot - limits.context_steps)
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
        count = in_order(size, rows, names, limits.step_ms, scratch)
        out.refused[s] = size - count
        m, num_workloads = divide(count, rows, names, scratch)
        find_stuck(rules, heard, m, known, scratch.told.stuck)
        grow(rules, heard, m, known, scratch.told.stuck, scratch.growth)
        tell(rules, scratch.growth, m, scratch.told)
        gauge(rules, heard, m, scratch.told)
        combine_plain(rules, scratch.told, heard.firsts, scratch.rows, num_workloads, out.values, out.observed)
        combine_misses(rules, scratch.told, heard.firsts, scratch.rows, num_workloads, out.values, out.observed)
        for i in range(m):
            known.heard[heard.series[i]] = slot
        put_sources(num_workloads, scratch, out, first_k, first_m, n)
        put_counters(known, m, heard, out, s, first_m)
        count_known(known, names, row_of, slot - limits.source_silence_steps + 1, out.sources_known)
        for i in range(size):
            row_of[scratch.workloads[i]] = ABSENT
        for i in range(closing.order_cuts[s], closing.order_cuts[s + 1]):
            row_of[closing.order[i]] = ABSENT
        if size:
            release(rows, closing.head[s])
        cuts[s + 1, ROWS], cuts[s + 1, SERIES], cuts[s + 1, SAMPLES] = k, first_m + m, n + count
        out.same[s] = (
            s > 0
            and is_same(out.workload, cuts[s - 1, ROWS], first_k, k)
            and is_same(out.series, cuts[s - 1, SERIES], first_m, first_m + m)
        )
