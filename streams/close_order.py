"""Closing a slot, compiled: who is in it, and its samples by workload, source and time."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from streams.compiled import compiled
from streams.ingest.aggregate_kernel import Growth, Heard, Told
from streams.ingest.pool_kernel import PoolRows
from streams.records.samples import Ints

NEVER: Final = -(1 << 62)
ABSENT: Final = -1
_REFUSED: Final = -2


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


class Scratch(NamedTuple):
    """What one slot needs while it is closed, for up to n samples.

    Attributes:
        row_of: [W] row of each workload; `ABSENT` everywhere before and after.
        found, workloads: [n] rows of the pool in log order, and their workloads.
        keys: [n] by which samples are ordered.
        order: [n] what brought the samples of an earlier slot into order, `num_ordered[0]` of them.
        rows: [n] of the page, of the workloads heard.
    """

    row_of: Ints
    found: Ints
    workloads: Ints
    keys: Ints
    order: Ints
    num_ordered: Ints
    heard: Heard
    rows: Ints
    told: Told
    growth: Growth


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
def find(rows: PoolRows, head: int, size: int, names: Names, scratch: Scratch) -> None:
    """The rows of a slot in log order, and their workloads."""
    following, series_of, workload_of = rows.following, rows.series, names.workload_of
    found, workloads = scratch.found, scratch.workloads
    row = head
    for i in range(size):
        found[i] = row
        workloads[i] = workload_of[series_of[row]]
        row = following[row]


@compiled
def admit(closing: Closing, at: int, names: Names, limits: Limits, scratch: Scratch) -> Ints:
    """Workloads of a slot's page, by name: known ones, and in order of appearance new ones while there is room.

    In `row_of` those left out are `_REFUSED`.
    """
    last_seen, row_of, mine, order = names.last_seen, scratch.row_of, scratch.workloads, closing.order
    oldest = closing.slot[at] - limits.context_steps
    room = limits.max_workloads
    for w in range(len(last_seen)):
        if last_seen[w] < oldest:
            last_seen[w] = NEVER
        else:
            room -= 1
    first, end = closing.order_cuts[at], closing.order_cuts[at + 1]
    num = end - first if end > first else closing.size[at]
    admitted = np.empty(num, np.int64)
    count = 0
    for i in range(num):
        w = order[first + i] if end > first else mine[i]
        if row_of[w] != ABSENT:
            continue
        known = last_seen[w] != NEVER
        if known or room > 0:
            room -= not known
            row_of[w] = 0
            admitted[count] = w
            count += 1
        else:
            row_of[w] = _REFUSED
    sort_by(names.rank, admitted, count)
    return admitted[:count]


@compiled
def in_order(size: int, rows: PoolRows, names: Names, step_ms: int, scratch: Scratch) -> int:
    """Put the admitted ones of a slot's samples by workload, source and time; how many there are.

    Mostly samples of one slot come as those of the slot before did, and the order that those needed is right again.
    """
    found, keys, order, heard = scratch.found, scratch.keys, scratch.order, scratch.heard
    workloads, row_of = scratch.workloads, scratch.row_of
    series_of, ts_ms, rank = rows.series, rows.ts_ms, names.series_rank
    samples, values, instants, heard_values = heard.samples, rows.values, heard.ts_ms, heard.values
    count = 0
    for i in range(size):
        row = found[i]
        if row_of[workloads[i]] >= 0:
            found[count] = row
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
        row = found[order[i]]
        samples[i], instants[i] = row, ts_ms[row]
        for f in range(values.shape[1]):
            heard_values[i, f] = values[row, f]
    return count


@compiled
def divide(count: int, rows: PoolRows, names: Names, scratch: Scratch) -> tuple[int, int]:
    """Split ordered samples by series and workload, see `Heard`; (how many series, how many workloads)."""
    series_of, workload_of, row_of, page_rows = rows.series, names.workload_of, scratch.row_of, scratch.rows
    heard = scratch.heard
    samples, begins, numbers, firsts = heard.samples, heard.begins, heard.series, heard.firsts
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
