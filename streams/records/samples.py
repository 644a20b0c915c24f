"""Samples as columns: the interface between the readers of records and the ingest kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.log import LogRecord
from streams.records.facts import HistogramState

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Shorts = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Hists = dict[str, HistogramState]


class SampleRun(NamedTuple):
    """R records with n samples in log order, every one of them well formed and none ahead of its stamp.

    Attributes:
        offsets, stamps: [R] of the records.
        sizes: [R] samples of each record, at least one.
        series: [n] series number.
        ts_ms: [n] event time.
        values: [n, F] in the order of the reader's fields, NaN where missing.
        hists: (sample, histograms by name) of the samples that have some, ascending.
        unknown: [R] number of names that are not in the catalogue; None = no such name in any record.
    """

    offsets: Ints
    stamps: Ints
    sizes: Ints
    series: Ints
    ts_ms: Ints
    values: Floats
    hists: Sequence[tuple[int, Hists]] = ()
    unknown: Ints | None = None

    def starts(self) -> Ints:
        """[R] first sample of each record."""
        return np.cumsum(self.sizes) - self.sizes

    def part(self, first_record: int, end_record: int) -> SampleRun:
        """Consecutive records of the run."""
        first = int(self.sizes[:first_record].sum())
        end = first + int(self.sizes[first_record:end_record].sum())
        rows, samples = slice(first_record, end_record), slice(first, end)
        return SampleRun(
            self.offsets[rows],
            self.stamps[rows],
            self.sizes[rows],
            self.series[samples],
            self.ts_ms[samples],
            self.values[samples],
            [(at - first, sample_hists) for at, sample_hists in self.hists if first <= at < end],
            None if self.unknown is None else self.unknown[rows],
        )

    def with_samples(self, good: Bools) -> SampleRun:
        """The same records with the samples where `good` [n] is true; some records may hold none."""
        if good.all():
            return self
        place = (np.cumsum(good) - 1).tolist() if self.hists else []
        sizes = np.bincount(np.repeat(np.arange(len(self.sizes)), self.sizes)[good], minlength=len(self.sizes))
        return SampleRun(
            self.offsets,
            self.stamps,
            sizes,
            self.series[good],
            self.ts_ms[good],
            self.values[good],
            [(place[at], sample_hists) for at, sample_hists in self.hists if good[at]],
            self.unknown,
        )

    def only(self, good: Bools) -> SampleRun:
        """The records where `good` [R] is true; each record of the run must hold one sample."""
        hists = self.hists
        if hists:
            place = (np.cumsum(good) - 1).tolist()
            hists = [(place[at], sample_hists) for at, sample_hists in hists if good[at]]
        return SampleRun(
            self.offsets[good],
            self.stamps[good],
            self.sizes[good],
            self.series[good],
            self.ts_ms[good],
            self.values[good],
            hists,
        )


def merge_runs(runs: Sequence[SampleRun]) -> SampleRun:
    """One run of all records, in log order."""
    if len(runs) == 1:
        return runs[0]
    hists: list[tuple[int, Hists]] = []
    before = 0
    for run in runs:
        hists += [(at + before, sample_hists) for at, sample_hists in run.hists]
        before += len(run.series)
    unknown = None
    if any(run.unknown is not None for run in runs):
        none = [run.unknown if run.unknown is not None else np.zeros(len(run.sizes), np.int64) for run in runs]
        unknown = np.concatenate(none)
    merged = SampleRun(
        np.concatenate([r.offsets for r in runs]),
        np.concatenate([r.stamps for r in runs]),
        np.concatenate([r.sizes for r in runs]),
        np.concatenate([r.series for r in runs]),
        np.concatenate([r.ts_ms for r in runs]),
        np.concatenate([r.values for r in runs]),
        hists,
        unknown,
    )
    ascending = bool((merged.offsets[1:] > merged.offsets[:-1]).all())
    return merged if ascending else _in_log_order(merged)


def _in_log_order(run: SampleRun) -> SampleRun:
    order = np.argsort(run.offsets, kind="stable")
    sizes = run.sizes[order]
    ends = np.cumsum(sizes)
    samples = np.repeat(run.starts()[order] - (ends - sizes), sizes) + np.arange(len(run.series))
    hists = run.hists
    if hists:
        place = np.empty_like(samples)
        place[samples] = np.arange(len(samples))
        hists = sorted(((int(place[at]), sample_hists) for at, sample_hists in hists), key=lambda pair: pair[0])
    return SampleRun(
        run.offsets[order],
        run.stamps[order],
        sizes,
        run.series[samples],
        run.ts_ms[samples],
        run.values[samples],
        hists,
        None if run.unknown is None else run.unknown[order],
    )


class SampleRows:
    """Columns that samples of consecutive records fill in place, until they become a run.

    Args:
        size: rows at first.
        width: F, columns of the values.

    Attributes:
        values, ts_ms, series: [rows, F], [rows] and [rows]; `make_room` may replace them by larger ones.
        used: number of rows in use.
    """

    def __init__(self, size: int, width: int) -> None:
        self.values = np.empty((size, width))
        self.ts_ms = np.empty(size, np.int64)
        self.series = np.empty(size, np.int64)
        self.used = 0
        self._records: list[tuple[int, int, int]] = []

    def make_room(self, num: int) -> slice:
        """The next `num` rows, to be written."""
        end = self.used + num
        if end > len(self.ts_ms):
            more = max(end, 2 * len(self.ts_ms)) - self.used
            used = slice(self.used)
            self.values = np.concatenate((self.values[used], np.empty((more, self.values.shape[1]))))
            self.ts_ms = np.concatenate((self.ts_ms[used], np.empty(more, np.int64)))
            self.series = np.concatenate((self.series[used], np.empty(more, np.int64)))
        return slice(self.used, end)

    def keep(self, record: LogRecord, num_samples: int) -> None:
        """Mark the next rows as the samples of this record."""
        self._records.append((record.offset, record.stamp_ms, num_samples))
        self.used += num_samples

    def run(self) -> SampleRun | None:
        """The records that were kept, as a run; None without any."""
        if not self._records:
            return None
        offsets, stamps, sizes = np.array(self._records, np.int64).T.copy()
        used = slice(self.used)
        return SampleRun(offsets, stamps, sizes, self.series[used], self.ts_ms[used], self.values[used])
