"""The samples of all open slots of a partition in one set of columns, whose rows are used again as slots close."""

from __future__ import annotations

import numpy as np

from streams.ingest.pool_kernel import NOBODY, PoolRows, SlotList, index_rows, open_slot, rows_from, take_run
from streams.records.samples import Ints, SampleRun

_FIRST_ROWS = 1024
_FIRST_SLOTS = 64


class SamplePool:
    """Rows for samples, and the list of open slots.

    Args:
        width: F, columns of the samples.
        step_ms: slot length.

    Attributes:
        rows, slots: as the loops take them; they are others after `take` or `open`.
    """

    def __init__(self, width: int, step_ms: int) -> None:
        self._step_ms = step_ms
        self._width = width
        self.rows = self._empty(_FIRST_ROWS)
        self.slots = SlotList(*(np.zeros(_FIRST_SLOTS, np.int64) for _ in SlotList._fields))

    def _empty(self, size: int) -> PoolRows:
        return PoolRows(
            series=np.full(size, NOBODY),
            ts_ms=np.zeros(size, np.int64),
            values=np.zeros((size, self._width)),
            following=np.full(size, NOBODY),
            free=np.arange(size - 1, -1, -1),
            places=np.full(2 * size, NOBODY),
            counts=np.array([size, 0]),
        )

    @property
    def num_slots(self) -> int:
        """Open slots."""
        return int(self.rows.counts[1])

    def series(self) -> Ints:
        """Series numbers of all samples."""
        numbers: Ints = self.rows.series[self.rows.series != NOBODY]
        return numbers

    def take(self, run: SampleRun, closed: Ints) -> tuple[Ints, Ints]:
        """Put samples into their slots.

        Args:
            closed: [R] newest closed slot when each record was read.

        Returns:
            [R, 4] samples of each record by what became of them, as the loop numbers it; [n] the row of each sample,
            -1 where it was not taken.
        """
        n = len(run.series)
        self._make_room(n)
        tally, row_of = np.zeros((len(run.sizes), 4), np.int64), np.empty(n, np.int64)
        take_run(
            self.rows,
            self.slots,
            self._step_ms,
            run.offsets,
            run.sizes,
            closed,
            np.ascontiguousarray(run.series),
            np.ascontiguousarray(run.ts_ms),
            np.ascontiguousarray(run.values),
            tally,
            row_of,
        )
        return tally, row_of

    def open(self, slot: int, offset: int) -> int:
        """Place of a slot in the list; the record at `offset` opens it if it is not open yet."""
        newest = self.num_slots - 1
        if newest >= 0 and self.slots.slot[newest] == slot:
            return newest  # as it mostly is: to ask the compiled search takes ten times as long
        self._make_room(1)
        place: int = open_slot(self.rows, self.slots, slot, offset)
        return place

    def rows_from(self, row: int, size: int) -> Ints:
        """`size` rows of a slot in log order, from this one on."""
        found: Ints = rows_from(self.rows, row, size)
        return found

    def drop_slots(self, num: int) -> None:
        """Take the first slots off the list; their samples stay until they are closed."""
        left = self.num_slots - num
        for column in self.slots:
            column[:left] = column[num : num + left]
        self.rows.counts[1] = left

    def _make_room(self, num: int) -> None:
        free, num_slots = self.rows.counts.tolist()
        if num_slots + num > len(self.slots.slot):
            more = np.zeros(num_slots + num, np.int64)
            self.slots = SlotList(*(np.concatenate((column, more)) for column in self.slots))
        if free >= num:
            return
        before, size = self.rows, len(self.rows.series)
        grown = size
        while grown - size + free < num:
            grown *= 2
        rows = self._empty(grown)
        for column, old in zip(rows[:4], before[:4], strict=True):
            column[:size] = old
        # The new rows lie below those that were free before: these are used first.
        new = grown - size
        rows.free[:new] = np.arange(grown - 1, size - 1, -1)
        rows.free[new : new + free] = before.free[:free]
        rows.counts[:] = new + free, num_slots
        index_rows(rows)
        self.rows = rows
