"""Consecutive records of samples as columns: what the reader hands to the fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.pages import HistogramState

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
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
        unknown: names that the catalogue does not know, per record; None = none at all.
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

    def record(self, number: int) -> SampleRun:
        """One record alone."""
        first = int(self.sizes[:number].sum())
        return self.part(number, number + 1, first, first + int(self.sizes[number]))

    def part(self, first_record: int, end_record: int, first: int, end: int) -> SampleRun:
        """Some of the records; `first` and `end` are the samples that they hold."""
        rows, samples = slice(first_record, end_record), slice(first, end)
        return SampleRun(
            self.offsets[rows],
            self.stamps[rows],
            self.sizes[rows],
            self.series[samples],
            self.ts_ms[samples],
            self.values[samples],
            [(at - first, held) for at, held in self.hists if first <= at < end],
            None if self.unknown is None else self.unknown[rows],
        )


def joined(runs: Sequence[SampleRun]) -> SampleRun:
    """Runs that follow on one another as one; none of them has unknown names."""
    if len(runs) == 1:
        return runs[0]
    hists: list[tuple[int, Hists]] = []
    before = 0
    for run in runs:
        hists += [(at + before, held) for at, held in run.hists]
        before += len(run.series)
    return SampleRun(
        np.concatenate([r.offsets for r in runs]),
        np.concatenate([r.stamps for r in runs]),
        np.concatenate([r.sizes for r in runs]),
        np.concatenate([r.series for r in runs]),
        np.concatenate([r.ts_ms for r in runs]),
        np.concatenate([r.values for r in runs]),
        hists,
    )
