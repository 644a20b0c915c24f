"""The inner loop of folding, compiled: samples of a run into the pool of open slots, in log order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streams.compiled import compiled
from streams.records.samples import Floats, Ints

ACCEPTED, LATE, DUPLICATE, REFUSED = range(4)
NOBODY = -1  # no row, no slot, no series
_HOME_BITS, _ROW_MASK = 32, 0xFFFFFFFF
_SHUFFLE_SERIES, _SHUFFLE_TIME = -7046029254386353131, 6364136223846793005


class PoolRows(NamedTuple):
    """Samples of all open slots; a row holds one, or is free.

    Attributes:
        series, ts_ms: [rows]; `series` is -1 in a free row.
        values: [rows, F], NaN where missing.
        following: [rows] the next sample of the same slot, in log order; -1 after the last.
        free: [rows] a stack of free rows, `counts[0]` high.
        places: hash table with linear probing (Knuth, TAOCP vol. 3, 6.4): rows by (series, ts_ms), -1 where empty. Its
            size is a power of two and at least twice the rows.
            The upper half of an entry is the home of the row, because computing it from the columns is slow.
        counts: [2] free rows, open slots.
    """

    series: Ints
    ts_ms: Ints
    values: Floats
    following: Ints
    free: Ints
    places: Ints
    counts: Ints


class SlotList(NamedTuple):
    """Open slots in ascending order, `PoolRows.counts[1]` of them: number, first and last row (-1: none), samples, and
    the offset of the record that opened it."""

    slot: Ints
    head: Ints
    tail: Ints
    size: Ints
    first_offset: Ints


@compiled
def home_of(series: int, ts_ms: int, mask: int) -> int:
    """Home of an identity in `places`: where it stands unless another entry is in its way."""
    mixed = series * _SHUFFLE_SERIES + ts_ms * _SHUFFLE_TIME
    return (mixed ^ (mixed >> 31)) & mask


@compiled
def find_slot(slots: SlotList, num_slots: int, slot: int) -> int:
    """Position in the list of the first open slot that is not before this one."""
    low, high = 0, num_slots
    while low < high:
        middle = (low + high) // 2
        if slots.slot[middle] < slot:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def open_slot(rows: PoolRows, slots: SlotList, slot: int, offset: int) -> int:
    """Position of a slot in the list, which must have room.

    The record at `offset` opens the slot if it is not open yet.
    """
    count = rows.counts[1]
    at = find_slot(slots, count, slot)
    if at == count or slots.slot[at] != slot:
        for i in range(count, at, -1):
            slots.slot[i] = slots.slot[i - 1]
            slots.head[i] = slots.head[i - 1]
            slots.tail[i] = slots.tail[i - 1]
            slots.size[i] = slots.size[i - 1]
            slots.first_offset[i] = slots.first_offset[i - 1]
        slots.slot[at], slots.head[at], slots.tail[at], slots.size[at] = slot, NOBODY, NOBODY, 0
        slots.first_offset[at] = offset
        rows.counts[1] = count + 1
    return at


@compiled
def take_run(
    rows: PoolRows,
    slots: SlotList,
    step_ms: int,
    offsets: Ints,
    sizes: Ints,
    closed: Ints,
    series: Ints,
    ts_ms: Ints,
    values: Floats,
    tally: Ints,
    row_of: Ints,
) -> None:
    """Put the samples of a run into their slots; the pool has a free row, and the list room, for each of them.

    Args:
        offsets, sizes: [R] of the records.
        closed: [R] newest closed slot when the record was read.
        series, ts_ms, values: [n], [n], [n, F].
        tally: [R, 4] out: samples of each record by verdict.
        row_of: [n] out: the row that holds the sample, -1 where none does.
    """
    places, pool_series, pool_ts_ms, pool_values = rows.places, rows.series, rows.ts_ms, rows.values
    mask = len(places) - 1
    i = 0
    slot, begin_ms, end_ms, at, count = 0, 0, 0, NOBODY, 0
    for record in range(len(sizes)):
        for _ in range(sizes[record]):
            instant = ts_ms[i]
            if not begin_ms <= instant < end_ms:
                slot = instant // step_ms
                begin_ms = slot * step_ms
                end_ms = begin_ms + step_ms
                at = NOBODY
            row_of[i] = NOBODY
            if slot <= closed[record]:
                tally[record, LATE] += 1
                i += 1
                continue
            if at == NOBODY or count != rows.counts[1]:
                at = open_slot(rows, slots, slot, offsets[record])
                count = rows.counts[1]
            who = series[i]
            home = home_of(who, instant, mask)
            place = home
            entry = places[place]
            while entry != NOBODY:
                row = entry & _ROW_MASK
                if entry >> _HOME_BITS == home and pool_series[row] == who and pool_ts_ms[row] == instant:
                    break
                place = (place + 1) & mask
                entry = places[place]
            if entry != NOBODY:
                tally[record, DUPLICATE] += 1
                i += 1
                continue
            rows.counts[0] -= 1
            row = rows.free[rows.counts[0]]
            places[place] = home << _HOME_BITS | row
            pool_series[row] = who
            pool_ts_ms[row] = instant
            for f in range(values.shape[1]):
                pool_values[row, f] = values[i, f]
            rows.following[row] = NOBODY
            if slots.size[at]:
                rows.following[slots.tail[at]] = row
            else:
                slots.head[at] = row
            slots.tail[at] = row
            slots.size[at] += 1
            row_of[i] = row
            tally[record, ACCEPTED] += 1
            i += 1


@compiled
def rows_from(rows: PoolRows, row: int, size: int) -> Ints:
    """The rows of a slot in log order, `size` of them from this one on."""
    slot_rows = np.empty(size, np.int64)
    for i in range(size):
        slot_rows[i] = row
        row = rows.following[row]
    return slot_rows


@compiled
def release(rows: PoolRows, head: int) -> None:
    """Free the rows of a closed slot."""
    places, series, ts_ms, following, free = rows.places, rows.series, rows.ts_ms, rows.following, rows.free
    mask = len(places) - 1
    num_free = rows.counts[0]
    row = head
    while row != NOBODY:
        home = home_of(series[row], ts_ms[row], mask)
        entry, place = home << _HOME_BITS | row, home
        while places[place] != entry:
            place = (place + 1) & mask
        # Entries after the gap move into it, unless the gap lies before their home (deletion of algorithm R in Knuth).
        nxt = (place + 1) & mask
        while places[nxt] != NOBODY:
            if (nxt - (places[nxt] >> _HOME_BITS)) & mask >= (nxt - place) & mask:
                places[place] = places[nxt]
                place = nxt
            nxt = (nxt + 1) & mask
        places[place] = NOBODY
        series[row] = NOBODY
        free[num_free] = row
        num_free += 1
        row = following[row]
    rows.counts[0] = num_free


@compiled
def release_slots(rows: PoolRows, heads: Ints) -> None:
    """Free the rows of closed slots, by the first row of each; -1 is a slot without samples."""
    for slot in range(len(heads)):
        release(rows, heads[slot])


@compiled
def index_rows(rows: PoolRows) -> None:
    """Enter every row that is not free into `places`, which is empty."""
    mask = len(rows.places) - 1
    for row in range(len(rows.series)):
        if rows.series[row] != NOBODY:
            home = home_of(rows.series[row], rows.ts_ms[row], mask)
            place = home
            while rows.places[place] != NOBODY:
                place = (place + 1) & mask
            rows.places[place] = home << _HOME_BITS | row
