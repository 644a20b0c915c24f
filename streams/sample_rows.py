"""Rows that the samples of records which follow one another share, until they are a run."""

from __future__ import annotations

import numpy as np

from streams.log import LogRecord
from streams.records.samples import SampleRun


class SampleRows:
    """Columns that are filled in place.

    Args:
        size: rows at first.
        width: F, columns of the values.

    Attributes:
        values, ts_ms, series: [rows, F], [rows] and [rows]; they are others after `make_room`.
        used: rows taken so far.
    """

    def __init__(self, size: int, width: int) -> None:
        self.values = np.empty((size, width))
        self.ts_ms = np.empty(size, np.int64)
        self.series = np.empty(size, np.int64)
        self.used = 0
        self._records: list[tuple[int, int, int]] = []

    def make_room(self, num: int) -> slice:
        """The next rows, so many."""
        end = self.used + num
        if end > len(self.ts_ms):
            more = max(end, 2 * len(self.ts_ms)) - self.used
            used = slice(self.used)
            self.values = np.concatenate((self.values[used], np.empty((more, self.values.shape[1]))))
            self.ts_ms = np.concatenate((self.ts_ms[used], np.empty(more, np.int64)))
            self.series = np.concatenate((self.series[used], np.empty(more, np.int64)))
        return slice(self.used, end)

    def keep(self, record: LogRecord, num_samples: int) -> None:
        """The next rows are the samples of this record."""
        self._records.append((record.offset, record.stamp_ms, num_samples))
        self.used += num_samples

    def run(self) -> SampleRun | None:
        """The records that were kept; None = not one."""
        if not self._records:
            return None
        offsets, stamps, sizes = np.array(self._records, np.int64).T.copy()
        used = slice(self.used)
        return SampleRun(offsets, stamps, sizes, self.series[used], self.ts_ms[used], self.values[used])
