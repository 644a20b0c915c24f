"""The samples of closing slots as a table: increases of counters, sums over samples and over sources.

Sums run in a fixed order (series by workload and source, samples by time), one addition after the other, so that equal
samples give equal bytes however they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streams.sample_run import Bools, Floats, Ints


class Newest(NamedTuple):
    """Of C counters, per series [m, C]: whether it stands in the slot, and its newest value there and when, else 0."""

    present: Bools
    last: Floats
    last_ts_ms: Ints


class Increases(NamedTuple):
    """Of C counters, per series [m, C]: whether it stands in the slot, fell, or grew by `amount` over `span_ms`."""

    present: Bools
    fell: Bools
    known: Bools
    amount: Floats
    span_ms: Floats


class SlotTable:
    """The samples of slots, n of m series of k rows, ordered by row, source and time.

    A row is a workload in a slot, and a series a source in a slot: nothing here goes from one slot to another.

    Args:
        num_rows: k.
        rows: [m] row of each series, ascending.
        series_of: [n] series of each sample, ascending.
        ts_ms: [n] event times.
        values: [n, F], NaN where missing.
    """

    def __init__(self, num_rows: int, rows: Ints, series_of: Ints, ts_ms: Ints, values: Floats) -> None:
        self.num_rows = num_rows
        self.rows = rows
        self.series_of = series_of
        self.ts_ms = ts_ms
        self.values = values
        self.starts = _starts(series_of)
        self._row_starts = _starts(rows)
        self._row_of_start = rows[self._row_starts]

    @property
    def num_series(self) -> int:
        return len(self.rows)

    def newest(self, counters: Sequence[int]) -> Newest:
        """The newest values of the counters in these columns."""
        values = self.values[:, counters]
        missing = np.isnan(values)
        if not missing.any():
            ends = np.append(self.starts[1:], len(values))[: self.num_series] - 1
            at = np.broadcast_to(ends[:, None], (len(ends), values.shape[1]))
            return Newest(np.ones(at.shape, np.bool_), values[ends], self.ts_ms[at])
        place = np.where(missing, -1, np.arange(len(values))[:, None])
        at = np.maximum.reduceat(place, self.starts, axis=0)
        present = at >= 0
        last = np.where(present, values[at, np.arange(values.shape[1])], 0.0)
        return Newest(present, last, np.where(present, self.ts_ms[at], 0))

    def increases(self, counters: Sequence[int], before: Floats, before_ts_ms: Floats) -> Increases:
        """What became of the counters in these columns.

        Args:
            before, before_ts_ms: [m, C] what each series had said of them before its slot, and when.
        """
        values, times = self.values[:, counters], self.ts_ms.astype(np.float64)
        missing = np.isnan(values)
        gaps = missing.any(axis=0)
        if not gaps.any():
            return self._increases(values, times, self.series_of, before, before_ts_ms)
        found = _no_increases(self.num_series, len(counters))
        # Columns without a gap go together, one that nobody sent needs no look, and the rest go one by one.
        whole = np.flatnonzero(~gaps)
        partly = np.flatnonzero(gaps & ~missing.all(axis=0))
        for columns in [whole, *partly[:, None]] if len(whole) else partly[:, None]:
            at = np.flatnonzero(~missing[:, columns[0]])
            part = self._increases(
                values[at[:, None], columns],
                times[at],
                self.series_of[at],
                before[:, columns],
                before_ts_ms[:, columns],
            )
            for target, news in zip(found, part, strict=True):
                target[:, columns] = news
        return found

    def _increases(
        self, values: Floats, ts_ms: Floats, series_of: Ints, before: Floats, before_ts_ms: Floats
    ) -> Increases:
        if not len(series_of):
            return _no_increases(self.num_series, values.shape[1])
        single = len(series_of) == self.num_series and len(self.series_of) == self.num_series
        starts = series_of if single else _starts(series_of)
        ends = starts if single else np.r_[starts[1:], len(series_of)] - 1
        who = series_of[starts]
        everywhere = len(who) == self.num_series
        if not everywhere:
            before, before_ts_ms = before[who], before_ts_ms[who]
        if single:
            fell = values < before
        else:
            previous = np.empty_like(values)
            previous[1:] = values[:-1]
            previous[starts] = before
            fell = np.logical_or.reduceat(values < previous, starts, axis=0)
        has_before = ~np.isnan(before)
        base = np.where(has_before, before, values[starts])
        base_ts_ms = np.where(has_before, before_ts_ms, ts_ms[starts, None])
        last_ts_ms = np.broadcast_to(ts_ms[ends, None], base.shape)
        known = last_ts_ms > base_ts_ms
        span_ms = np.where(known, last_ts_ms - base_ts_ms, 1.0)
        found = Increases(np.ones(base.shape, np.bool_), fell, known, values[ends] - base, span_ms)
        if everywhere:
            return found
        empty = _no_increases(self.num_series, values.shape[1])
        for whole, part in zip(empty, found, strict=True):
            whole[who] = part
        return empty

    def per_series(self, columns: Floats, maxima: bool) -> tuple[Floats, Bools]:
        """Mean or maximum of [n, c] over each series' samples, and whether there is any."""
        missing = np.isnan(columns)
        if len(self.series_of) == self.num_series:
            return np.where(missing, 0.0, columns), ~missing
        if maxima:
            top = np.maximum.reduceat(np.where(missing, -np.inf, columns), self.starts, axis=0)
            seen = top > -np.inf
            return np.where(seen, top, 0.0), seen
        count = _sums(self.series_of, (~missing).astype(np.float64), self.num_series)
        total = _sums(self.series_of, np.where(missing, 0.0, columns), self.num_series)
        return total / np.maximum(count, 1.0), count > 0.0

    def any_of(self, flags: Bools) -> Bools:
        """[k, c]: does it hold for any of a workload's series?"""
        out = np.zeros((self.num_rows, flags.shape[1]), np.bool_)
        out[self._row_of_start] = np.logical_or.reduceat(flags, self._row_starts, axis=0)
        return out

    def limits(self, numbers: Floats, where: Bools, cap: float) -> Floats:
        """[m, c]: `cap` times the mean of what a workload's other sources say; a source counts for no more than that.

        Of fewer than three sources nobody can say which one is out of line: there is no limit.
        """
        counted = np.where(where, numbers, 0.0)
        width = numbers.shape[1]
        sums = _sums(self.rows, np.hstack((counted, where)), self.num_rows)[self.rows]
        total, others = sums[:, :width], sums[:, width:] - 1.0
        limit = cap * ((total - counted) / np.maximum(others, 1.0))
        # A counter that fell has a negative increase; what is made of it is masked.
        found: Floats = np.where(where & (others >= 2.0), np.maximum(limit, 0.0), np.inf)
        return found

    def over_sources(self, numbers: Floats, where: Bools, how: Sequence[str]) -> tuple[Floats, Bools]:
        """[k, c]: sum, mean or max over a workload's series, by source name; `how` of the first columns, then sums."""
        seen = self.any_of(where)
        means = [c for c, name in enumerate(how) if name == "mean"]
        maxima = [c for c, name in enumerate(how) if name == "max"]
        width = numbers.shape[1]
        sums = _sums(self.rows, np.hstack((np.where(where, numbers, 0.0), where[:, means])), self.num_rows)
        out = sums[:, :width]
        if means:
            out[:, means] /= np.maximum(sums[:, width:], 1.0)
        if maxima:
            top = np.maximum.reduceat(np.where(where[:, maxima], numbers[:, maxima], -np.inf), self._row_starts, axis=0)
            held = np.zeros((self.num_rows, len(maxima)))
            held[self._row_of_start] = top
            out[:, maxima] = np.where(seen[:, maxima], held, 0.0)
        return out, seen


def _no_increases(num_series: int, num_counters: int) -> Increases:
    shape = (num_series, num_counters)
    present, fell, known = np.zeros((3, *shape), np.bool_)
    return Increases(present, fell, known, np.zeros(shape), np.ones(shape))


def _starts(groups: Ints) -> Ints:
    """First place of each group of equal neighbours."""
    if not len(groups):
        return np.zeros(0, np.int64)
    change = np.empty(len(groups), np.bool_)
    change[0] = True
    np.not_equal(groups[1:], groups[:-1], out=change[1:])
    return np.flatnonzero(change)


def _sums(groups: Ints, numbers: Floats, num_groups: int) -> Floats:
    """[num_groups, c]: sums of the rows of each group, added one after the other."""
    width = numbers.shape[1]
    cells = groups[:, None] * width + np.arange(width)
    total = np.bincount(cells.ravel(), weights=numbers.ravel(), minlength=num_groups * width)
    return total.reshape(num_groups, width).astype(np.float64, copy=False)
