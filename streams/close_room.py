"""The memory in which slots are closed, kept from one block to the next."""

from __future__ import annotations

import numpy as np

from streams.close_columns import Columns
from streams.close_order import Scratch
from streams.indicators import IndicatorRules
from streams.ingest.aggregate_kernel import Growth, Heard, Told


class CloseRoom:
    """Arrays for closing blocks of slots, as large as the largest block so far needed.

    Args:
        rules: say how many counters and indicators there are.
        width: F, columns of the samples.
    """

    def __init__(self, rules: IndicatorRules, width: int) -> None:
        self._rules = rules
        self._width = width
        self._size, self._scratch_size = (1, 1, 1), (1, 1)
        self._columns = self._new_columns(*self._size)
        self._scratch = self._new_scratch(*self._scratch_size)

    def columns(self, num_slots: int, k: int, n: int) -> Columns:
        """Columns for so many slots with k rows and n samples in all; what was in them before is overwritten."""
        slots, rows, samples = self._size
        size = _grown(slots, num_slots), _grown(rows, k), _grown(samples, n)
        if size != self._size:
            self._size, self._columns = size, self._new_columns(*size)
        return self._columns

    def scratch(self, num_names: int, n: int) -> Scratch:
        """What slots with up to n samples need, where so many workloads have numbers."""
        names, samples = self._scratch_size
        size = _grown(names, num_names), _grown(samples, n)
        if size != self._scratch_size:
            self._scratch_size, self._scratch = size, self._new_scratch(*size)
        return self._scratch

    def _new_columns(self, num_slots: int, k: int, n: int) -> Columns:
        num_indicators, num_counters = self._rules.num_indicators, len(self._rules.counters)
        # As they lie in a page: little-endian.
        return Columns(
            cuts=np.empty((num_slots + 1, 6), np.int64),
            refused=np.empty(num_slots, np.int64),
            same=np.empty(num_slots, np.bool_),
            used=np.empty((num_slots, num_counters), np.bool_),
            workload=np.empty(k, np.int64),
            values=np.empty((k, num_indicators), "<f4"),
            observed=np.empty((k, num_indicators), np.bool_),
            num_samples=np.empty(k, "<i4"),
            newest_ms=np.empty(k, "<i8"),
            sources_seen=np.empty(k, "<i4"),
            sources_known=np.empty(k, "<i4"),
            flags=np.empty(k, np.uint8),
            series=np.empty(n, np.int64),
            row=np.empty(n, "<i4"),
            series_ms=np.empty(n, "<i8"),
            cells=np.empty(n * num_counters, "<f8"),
            present=np.empty(n * num_counters // 8 + num_slots, np.uint8),
            older=np.empty((n * num_counters, 3), np.int64),
            sample_row=np.empty(n, np.int64),
            sample_series=np.empty(n, np.int64),
        )

    def _new_scratch(self, num_names: int, n: int) -> Scratch:
        tables, num_counters = self._rules.tables, len(self._rules.counters)
        plain, misses, grown = (n, len(tables.plain_at)), (n, len(tables.miss_at)), (n, num_counters)
        falls = n, len(tables.rate_counters) + len(tables.miss_at)
        found, workloads, keys, order, rows, samples, ts_ms, series = np.empty((8, n), np.int64)
        begins, firsts = np.empty((2, n + 1), np.int64)
        return Scratch(
            row_of=np.full(num_names, -1),
            found=found,
            workloads=workloads,
            keys=keys,
            order=order,
            num_ordered=np.zeros(1, np.int64),
            heard=Heard(samples, ts_ms, np.empty((n, self._width)), begins, series, firsts),
            rows=rows,
            told=Told(
                plain=np.empty(plain),
                plain_known=np.empty(plain, np.bool_),
                good=np.empty(misses),
                whole=np.empty(misses),
                miss_known=np.empty(misses, np.bool_),
                fell=np.empty(falls, np.bool_),
                censored=np.empty(n, np.bool_),
                stuck=np.empty(n, np.bool_),
            ),
            growth=Growth(*np.empty((3, *grown), np.bool_), *np.empty((2, *grown))),
        )


def _grown(size: int, needed: int) -> int:
    return size if needed <= size else max(needed, 2 * size)
