"""The samples of a closing slot as a table: increases of counters, sums over samples and over sources.

Sums run in a fixed order (series by workload and source, samples by time), one addition after the other, so that equal
samples give equal bytes however they arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streams.pages import HistogramState
from streams.sample_run import Bools, Floats, Ints

HistStates = Mapping[str, Sequence[HistogramState]]


class Increases(NamedTuple):
    """Of C counters, per series [m, C]: whether it stands in the slot, fell, or grew by `amount` over `span_ms`.

    `last` and `last_ts_ms` are its newest value and when, where it stands in the slot.
    """

    present: Bools
    fell: Bools
    known: Bools
    amount: Floats
    span_ms: Floats
    last: Floats
    last_ts_ms: Floats


class SlotTable:
    """The samples of a slot, n of m series of k workloads, ordered by workload, source and time.

    Args:
        num_workloads: k.
        rows: [m] workload row of each series, ascending.
        series_of: [n] series of each sample, ascending.
        ts_ms: [n] event times.
        values: [n, F], NaN where missing.
        before, before_ts_ms: [m, C] what each series had said of its counters before this slot, and when.
        hists: series -> histograms by name, oldest first, with what was known before the slot in front.
    """

    def __init__(
        self,
        num_workloads: int,
        rows: Ints,
        series_of: Ints,
        ts_ms: Floats,
        values: Floats,
        before: Floats,
        before_ts_ms: Floats,
        hists: Mapping[int, HistStates],
    ) -> None:
        self.num_workloads = num_workloads
        self.rows = rows
        self.series_of = series_of
        self.ts_ms = ts_ms
        self.values = values
        self.before = before
        self.before_ts_ms = before_ts_ms
        self.hists = hists
        self.starts = _starts(series_of)
        self._row_starts = _starts(rows)
        self._row_of_start = rows[self._row_starts]

    @property
    def num_series(self) -> int:
        return len(self.rows)

    def increases(self, counters: Sequence[int]) -> Increases:
        """What became of the counters in these columns."""
        values = self.values[:, counters]
        missing = np.isnan(values)
        gaps = missing.any(axis=0)
        if not gaps.any():
            return self._increases(values, self.ts_ms, self.series_of, self.before, self.before_ts_ms)
        found = _no_increases(self.num_series, len(counters))
        # Columns without a gap go together, one that nobody sent needs no look, and the rest go one by one.
        whole = np.flatnonzero(~gaps)
        partly = np.flatnonzero(gaps & ~missing.all(axis=0))
        for columns in [whole, *partly[:, None]] if len(whole) else partly[:, None]:
            at = np.flatnonzero(~missing[:, columns[0]])
            part = self._increases(
                values[at[:, None], columns],
                self.ts_ms[at],
                self.series_of[at],
                self.before[:, columns],
                self.before_ts_ms[:, columns],
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
        last, last_ts_ms = values[ends], np.broadcast_to(ts_ms[ends, None], base.shape)
        known = last_ts_ms > base_ts_ms
        span_ms = np.where(known, last_ts_ms - base_ts_ms, 1.0)
        found = Increases(np.ones(base.shape, np.bool_), fell, known, last - base, span_ms, last, last_ts_ms)
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
        out = np.zeros((self.num_workloads, flags.shape[1]), np.bool_)
        out[self._row_of_start] = np.logical_or.reduceat(flags, self._row_starts, axis=0)
        return out

    def limits(self, numbers: Floats, where: Bools, cap: float) -> Floats:
        """[m, c]: `cap` times the mean of what a workload's other sources say; a source counts for no more than that.

        Of fewer than three sources nobody can say which one is out of line: there is no limit.
        """
        counted = np.where(where, numbers, 0.0)
        width = numbers.shape[1]
        sums = _sums(self.rows, np.hstack((counted, where)), self.num_workloads)[self.rows]
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
        sums = _sums(self.rows, np.hstack((np.where(where, numbers, 0.0), where[:, means])), self.num_workloads)
        out = sums[:, :width]
        if means:
            out[:, means] /= np.maximum(sums[:, width:], 1.0)
        if maxima:
            top = np.maximum.reduceat(np.where(where[:, maxima], numbers[:, maxima], -np.inf), self._row_starts, axis=0)
            held = np.zeros((self.num_workloads, len(maxima)))
            held[self._row_of_start] = top
            out[:, maxima] = np.where(seen[:, maxima], held, 0.0)
        return out, seen


def _no_increases(num_series: int, num_counters: int) -> Increases:
    shape = (num_series, num_counters)
    present, fell, known = np.zeros((3, *shape), np.bool_)
    return Increases(present, fell, known, np.zeros(shape), np.ones(shape), np.zeros(shape), np.zeros(shape))


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
