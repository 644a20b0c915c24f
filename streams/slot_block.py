"""The samples of closing slots as one block of columns: slots that close together cost hardly more than one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.sample_run import Floats, Hists, Ints
from streams.series_index import SeriesIndex
from streams.slot_table import Newest
from streams.slots import OpenSlot


class SlotBlock:
    """The admitted samples of some slots, ordered by slot, workload, source and time.

    Args:
        opened: the slots, ascending.
        workloads: those that each slot's page holds, ascending by name.
        index: of the series.
        width: F, columns of the samples.

    Attributes:
        numbers: per slot the workload numbers of its rows.
        row_cuts: rows of slot i are `row_cuts[i]` to `row_cuts[i + 1]`; a row is one workload in one slot.
        cuts: series of slot i likewise; a series here is one source in one slot.
        series: [m] series numbers; `rows` [m] their rows, ascending.
        series_of: [n] which of the m series each sample belongs to; `ts_ms` [n], `values` [n, F].
        newest: [m] event time of the last sample of each series.
        hists: (sample, histograms by name), ascending.
        num_refused: per slot, samples of workloads that were not admitted.
    """

    def __init__(
        self, opened: Sequence[OpenSlot], workloads: Sequence[Sequence[str]], index: SeriesIndex, width: int
    ) -> None:
        self.numbers = [index.numbers_of(names) for names in workloads]
        self.row_cuts = [0, *np.cumsum([len(names) for names in workloads]).tolist()]
        parts = [slot.samples.columns(width) for slot in opened]
        series, ts_ms, values = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        slot_of = np.repeat(np.arange(len(opened)), [len(part[0]) for part in parts])
        row_of = np.full(index.num_names, -1)
        found: list[Ints] = []
        for numbers, first, part in zip(self.numbers, self.row_cuts, parts, strict=False):
            row_of[numbers] = np.arange(first, first + len(numbers))
            found.append(row_of[index.workload_of[part[0]]])
            row_of[numbers] = -1
        rows = found[0] if len(found) == 1 else np.concatenate(found)
        place = np.arange(len(series))
        self.num_refused = [0] * len(opened)
        refused = rows < 0
        if refused.any():
            self.num_refused = np.bincount(slot_of[refused], minlength=len(opened)).tolist()
            place = place[~refused]
        key = slot_of[place] * index.capacity + index.ranks()[series[place]]
        order = np.lexsort((ts_ms[place], key))
        place, key = place[order], key[order]
        first_of = np.ones(len(key), np.bool_)
        first_of[1:] = key[1:] != key[:-1]
        starts = np.flatnonzero(first_of)
        self.series: Ints = series[place[starts]]
        self.rows: Ints = rows[place[starts]]
        self.series_of: Ints = np.cumsum(first_of) - 1
        self.ts_ms: Ints = ts_ms[place]
        self.values: Floats = values[place]
        self.newest: Ints = self.ts_ms[np.append(starts[1:], len(place))[: len(starts)] - 1]
        self.cuts: list[int] = np.searchsorted(self.rows, self.row_cuts).tolist()
        self.hists: list[tuple[int, Hists]] = []
        if any(slot.samples.hists for slot in opened):
            self.hists = _moved(opened, place)

    def before(self, newest: Newest, known: Floats, known_ts_ms: Ints) -> tuple[Floats, Ints]:
        """What each series had said of its counters before its slot, and when: both [m, C], NaN where nothing.

        Args:
            newest: of the counters, in each slot.
            known, known_ts_ms: [m, C] what the series had said before the block.
        """
        if len(self.cuts) == 2:
            return known, known_ts_ms
        order = np.argsort(self.series, kind="stable")  # each series' slots in a row
        place = np.arange(len(order))[:, None]
        series = self.series[order]
        first = np.ones((len(order), 1), np.bool_)
        first[1:, 0] = series[1:] != series[:-1]
        told_at = np.maximum.accumulate(np.where(newest.present[order], place, -1), axis=0)
        told_at = np.concatenate((np.full((1, told_at.shape[1]), -1), told_at))[:-1]
        inside = told_at >= np.maximum.accumulate(np.where(first, place, 0), axis=0)
        at, column = np.nonzero(inside)
        source = order[told_at[at, column]], column
        values, times = known.copy(), known_ts_ms.copy()
        values[order[at], column] = newest.last[source]
        times[order[at], column] = newest.last_ts_ms[source]
        return values, times

    def final(self) -> Ints:
        """Of each series number its last place among the m."""
        if len(self.cuts) == 2:
            return np.arange(len(self.series))
        _, back = np.unique(self.series[::-1], return_index=True)
        return len(self.series) - 1 - back


def _moved(opened: Sequence[OpenSlot], place: Ints) -> list[tuple[int, Hists]]:
    now_at = {old: new for new, old in enumerate(place.tolist())}
    moved: list[tuple[int, Hists]] = []
    before = 0
    for slot in opened:
        moved += [(now_at[before + at], held) for at, held in slot.samples.hists if before + at in now_at]
        before += slot.samples.num
    return sorted(moved, key=lambda pair: pair[0])
