"""Closing a slot, compiled: what its page says, as columns in the shape in which pages hold them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streams.close_order import Scratch
from streams.compiled import compiled
from streams.ingest.aggregate_kernel import Heard, Remembered
from streams.records.samples import Bools, Bytes, Floats, Ints, Shorts, Singles

CENSORED, RESET = 1, 2
# Columns of `cuts`: whatever a slot's page has more than one of.
ROWS, SERIES, SAMPLES, CELLS, PRESENT, OLDER = range(6)


class Columns(NamedTuple):
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
def put_sources(num_workloads: int, scratch: Scratch, out: Columns, first_row: int, first_m: int, n: int) -> None:
    """The series and samples of a slot, and the facts of the workloads that they belong to."""
    heard, told = scratch.heard, scratch.told
    begins, firsts = heard.begins, heard.firsts
    for w in range(num_workloads):
        row, first, end = scratch.rows[w], firsts[w], firsts[w + 1]
        newest_ms, censored, fell, seen = 0, False, False, 0
        for i in range(first, end):
            last_ms = heard.ts_ms[begins[i + 1] - 1]
            out.series[first_m + i], out.row[first_m + i] = heard.series[i], row - first_row
            out.series_ms[first_m + i] = last_ms
            newest_ms = max(newest_ms, last_ms)
            censored |= told.censored[i]
            seen += not told.stuck[i]
            for q in range(told.fell.shape[1]):
                fell |= told.fell[i, q]
            for j in range(begins[i], begins[i + 1]):
                out.sample_row[n + j], out.sample_series[n + j] = heard.samples[j], i
        out.num_samples[row], out.newest_ms[row] = begins[end] - begins[first], newest_ms
        out.sources_seen[row] = seen
        out.flags[row] = CENSORED * censored + RESET * fell


@compiled
def put_counters(known: Remembered, m: int, heard: Heard, out: Columns, at: int, first_m: int) -> None:
    """What is remembered of the counters of a slot's m series: `used`, `cells`, `present`, `older` and their cuts."""
    values, times, used, cuts = known.values, known.times, out.used, out.cuts
    cells, series_ms, numbers = out.cells, out.series_ms, heard.series
    first_cell, byte, num_older = cuts[at, CELLS], cuts[at, PRESENT], cuts[at, OLDER]
    columns = np.empty(values.shape[1], np.int64)
    num_used, num_fresh = 0, 0
    for c in range(values.shape[1]):
        there = False
        for i in range(m):
            there |= not np.isnan(values[numbers[i], c])
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
def is_same(numbers: Ints, before: int, first: int, end: int) -> bool:
    """Whether the numbers from `first` to `end` are those from `before` to `first`."""
    if first - before != end - first:
        return False
    for i in range(end - first):  # noqa: SIM110 - numba knows no `all`
        if numbers[before + i] != numbers[first + i]:
            return False
    return True
