"""A week of 10-minute means of demand: the ring, its log `pages.coarse`, and the size of what a restart reads back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.log import UNREADABLE, ContractBroken, OtherSettings
from streams.runtime.commits import CHUNK_BYTES, FOREIGN_WRITER_REMEDY, VERSION, version_mismatch
from streams.runtime.restore import LogReader
from streams.topics import MIB, Topics
from streams.windows.cells import from_oldest, grow_rows, half_observed, half_value, half_values, pack_half

COARSE_ROWS = 1008
COARSE_STEP_MS = 600_000
DAY_ROWS = 86_400_000 // COARSE_STEP_MS


class RunningCoarse(msgspec.Struct, frozen=True):
    """The running ten minutes: per workload the sums and counts of the named level-1 indicators."""

    indicators: tuple[str, ...] = ()
    sums: dict[str, tuple[list[float], list[int]]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class CoarseRow:
    """Ten minutes `[index*600 s, (index+1)*600 s)`: means of the level-1 indicators, float32 [k, C], and their mask."""

    index: int
    workloads: tuple[str, ...]
    indicators: tuple[str, ...]
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]

    def keep(self, workloads: Sequence[str]) -> CoarseRow:
        """The same ten minutes with only some of the workloads."""
        chosen = frozenset(workloads)
        rows = [k for k, workload in enumerate(self.workloads) if workload in chosen]
        names = tuple(self.workloads[k] for k in rows)
        return CoarseRow(self.index, names, self.indicators, self.values[rows], self.observed[rows])


class CoarseRing:
    """Means by row of the window table.

    Args:
        indicators: names of the C level-1 indicators.
        step_ms: slot length.
        capacity: rows.

    Attributes:
        newest: index of the newest ten minutes stored; None before the first.
    """

    def __init__(self, indicators: tuple[str, ...], step_ms: int, capacity: int) -> None:
        self.indicators = indicators
        self.newest: int | None = None
        self._step_ms = step_ms
        self._cells = np.zeros((capacity, COARSE_ROWS, len(indicators)), np.uint16)
        self._sums = np.zeros((capacity, len(indicators)))
        self._counts = np.zeros((capacity, len(indicators)), np.int64)

    def grow(self, capacity: int) -> None:
        """Make room for more rows."""
        more = capacity - len(self._sums)
        self._cells = grow_rows(self._cells, capacity)
        self._sums = np.concatenate([self._sums, np.zeros((more, len(self.indicators)))])
        self._counts = np.concatenate([self._counts, np.zeros((more, len(self.indicators)), np.int64)])

    def clear(self, row: int) -> None:
        """Drop the cells of a row."""
        for array in (self._cells, self._sums, self._counts):
            array[row] = 0

    def read(self, row: int, newest: int = COARSE_ROWS) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The newest means, up to [1008, C], oldest first, 0 where not observed; and their mask."""
        cells = from_oldest(self._cells[row], self.newest or 0)[-newest:]
        return half_values(cells), half_observed(cells)

    def day_ago(self, row: int, end_ms: int, column: int, rows: int) -> tuple[float | None, ...]:
        """`rows` 10-minute means, from a day before `end_ms` on; None where not observed."""
        first = end_ms // COARSE_STEP_MS - DAY_ROWS
        return tuple([self._mean(row, index, column) for index in range(first, first + rows)])

    def _mean(self, row: int, index: int, column: int) -> float | None:
        if self.newest is None or not self.newest - COARSE_ROWS < index <= self.newest:
            return None
        return half_value(self._cells.item(row, index % COARSE_ROWS, column))

    def goes_on(self, before: int, slot: int) -> bool:
        """Whether a slot belongs to the same ten minutes as one before it."""
        return before * self._step_ms // COARSE_STEP_MS == slot * self._step_ms // COARSE_STEP_MS

    def restart(self) -> None:
        """Begin new ten minutes."""
        self._sums[:] = 0
        self._counts[:] = 0

    def add(
        self, slot: int, rows: Mapping[str, int], values: NDArray[np.float32], observed: NDArray[np.bool_]
    ) -> CoarseRow | None:
        """Add a slot to the running ten minutes; returns the row if the slot completes it.

        A slot belongs to the ten minutes in which it ends.

        Args:
            rows: row of every workload.
            values, observed: [R, C] of the slot, by row.
        """
        used = len(values)
        self._sums[:used] += values * observed
        self._counts[:used] += observed
        end_ms = (slot + 1) * self._step_ms
        if end_ms // COARSE_STEP_MS == (end_ms - self._step_ms) // COARSE_STEP_MS:
            return None
        names = [w for w in sorted(rows) if self._counts[rows[w]].any()]
        at = [rows[w] for w in names]
        counts, sums = self._counts[at], self._sums[at]
        means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
        self.restart()
        done = CoarseRow(
            end_ms // COARSE_STEP_MS - 1, tuple(names), self.indicators, means.astype(np.float32), counts > 0
        )
        self.write(done, rows)
        return done

    def write(self, row: CoarseRow, rows: Mapping[str, int]) -> None:
        """Store ten minutes of means; they come in ascending order of index, gaps are unobserved.

        Indicators are matched by name. Those that the row does not hold stay unobserved, and unknown workloads are
        ignored.
        """
        first = row.index if self.newest is None else self.newest + 1
        used = max(rows.values(), default=-1) + 1
        for index in range(max(first, row.index - COARSE_ROWS + 1), row.index + 1):
            self._cells[:used, index % COARSE_ROWS] = 0
        self.newest = row.index if self.newest is None else max(row.index, self.newest)
        column_of = {name: n for n, name in enumerate(row.indicators)}
        chosen = [k for k, workload in enumerate(row.workloads) if workload in rows]
        at = [rows[row.workloads[k]] for k in chosen]
        for to, name in enumerate(self.indicators):
            if name in column_of:
                column = column_of[name]
                cells = pack_half(row.values[chosen, column], row.observed[chosen, column])
                self._cells[at, row.index % COARSE_ROWS, to] = cells

    def running(self, rows: Mapping[str, int]) -> RunningCoarse:
        """The running ten minutes, for the commit record."""
        names = sorted(rows)
        at = [rows[w] for w in names]
        per_workload = zip(names, self._sums[at].tolist(), self._counts[at].tolist(), strict=True)
        return RunningCoarse(self.indicators, {w: (sums, counts) for w, sums, counts in per_workload})

    def restore_running(self, row: int, running: RunningCoarse, workload: str) -> None:
        """Restore the running ten minutes of one workload from a commit record; indicators are matched by name."""
        sums, counts = running.sums[workload]
        for to, name in enumerate(self.indicators):
            if name in running.indicators:
                column = running.indicators.index(name)
                self._sums[row, to], self._counts[row, to] = sums[column], counts[column]


# Workloads in one record of a coarse row.
_MAX_PART_WORKLOADS = 5_000


class _CoarseWire(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    workloads: tuple[str, ...]
    indicators: tuple[str, ...]
    values: bytes
    observed: bytes


def encode_coarse(row: CoarseRow) -> list[bytes]:
    """Bytes of ten minutes of means, in parts of at most 900 kB of names and cells, and of 5,000 workloads."""
    parts: list[bytes] = []
    for start, stop in pairwise(_coarse_cuts(row)):
        parts.append(
            msgspec.msgpack.encode(
                _CoarseWire(
                    VERSION,
                    row.index,
                    row.workloads[start:stop],
                    row.indicators,
                    row.values[start:stop].tobytes(),
                    row.observed[start:stop].tobytes(),
                )
            )
        )
    return parts


def _coarse_cuts(row: CoarseRow) -> list[int]:
    """First workload of each part of a row, and the end of the last part: [parts + 1], ascending."""
    cells_bytes = len(row.indicators) * (row.values.itemsize + row.observed.itemsize)
    cuts, num_bytes = [0], 0
    for at, workload in enumerate(row.workloads):
        more = len(workload.encode()) + cells_bytes
        if num_bytes + more > CHUNK_BYTES or at - cuts[-1] == _MAX_PART_WORKLOADS:
            cuts.append(at)
            num_bytes = 0
        num_bytes += more
    return [*cuts, len(row.workloads)]


def decode_coarse(value: bytes | None, where: str = "pages.coarse") -> CoarseRow:
    """Inverse of one part of `encode_coarse`.

    Args:
        where: topic, partition and offset, for error messages.

    Raises:
        ContractBroken: the bytes are not a coarse row, or one of another version.
    """
    try:
        wire = msgspec.msgpack.decode(value or b"", type=_CoarseWire)
        if wire.version != VERSION:
            raise OtherSettings(f"{where} {version_mismatch(wire.version)}")
        shape = (len(wire.workloads), len(wire.indicators))
        values = np.frombuffer(wire.values, np.float32).reshape(shape)
        observed = np.frombuffer(wire.observed, np.bool_).reshape(shape)
    except (*UNREADABLE, ValueError) as error:
        raise ContractBroken(f"{where} is not ten minutes of means ({error}); {FOREIGN_WRITER_REMEDY}") from error
    return CoarseRow(wire.index, wire.workloads, wire.indicators, values, observed)


class StoredRow(NamedTuple):
    """A row, or the part of one that a record holds, with the record's value."""

    row: CoarseRow
    value: bytes | None


async def read_coarse_week(reader: LogReader, topic: str, partition: int, newest: int) -> list[StoredRow]:
    """The last 1,008 ten minutes up to index `newest`, and some before them, in log order.

    There are fewer where the log begins later. Ten minutes of many workloads have several rows.

    Raises:
        ContractBroken: a record is no coarse row.
    """
    begin, end = await reader.bounds(topic, partition)
    stretch = 2 * COARSE_ROWS  # enough for one record per ten minutes, with room for repeats after crashes
    while True:
        start = max(begin, end - stretch)
        rows = [
            StoredRow(decode_coarse(record.value, f"{topic}/{partition}: offset {record.offset}"), record.value)
            async for record in reader.read(topic, partition, start, end)
        ]
        if start == begin or (rows and rows[0].row.index <= newest - COARSE_ROWS):
            return [stored for stored in rows if stored.row.index <= newest]
        stretch *= 2


# Newest entries of a log whose sizes are kept.
_MAX_ENTRIES = 8


class EntrySizes:
    """Bytes of a log's newest entries: slots of `pages`, rows of `pages.coarse`. Each may be of many records."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, number: int, value: bytes | None) -> None:
        """Count a record of the slot or row of this number."""
        self._bytes[number] = self._bytes.get(number, 0) + len(value or b"")
        if len(self._bytes) > _MAX_ENTRIES:
            del self._bytes[min(self._bytes)]

    @property
    def largest(self) -> int:
        """Bytes of the largest entry; 0 without any. The newest may still be incomplete."""
        return max(self._bytes.values(), default=0)


class ReadBackSizes:
    """Sizes of the two logs of a partition that a restart reads back, compared with what the topics keep.

    Args:
        context_steps: L, the slots that a restart reads.
    """

    def __init__(self, topics: Topics, context_steps: int) -> None:
        self._topics = topics
        self._context_steps = context_steps
        self.pages = EntrySizes()
        self.coarse = EntrySizes()

    def needed_bytes(self) -> dict[str, int]:
        """Bytes that each topic should keep of the partition: twice L slots, as fleets grow, and a week of rows."""
        return {
            self._topics.pages: 2 * self._context_steps * self.pages.largest,
            self._topics.pages_coarse: COARSE_ROWS * self.coarse.largest,
        }


def shortages(partition: int, needed_bytes: Mapping[str, int], retention_bytes: Mapping[str, int]) -> list[str]:
    """A clause for each log of a partition that keeps too little.

    Args:
        needed_bytes, retention_bytes: by topic; a topic that is not bounded by size is absent from `retention_bytes`.
    """
    return [
        f"{topic}/{partition} should keep {-(-needed // MIB)} MiB and keeps {retention_bytes[topic] // MIB}"
        for topic, needed in sorted(needed_bytes.items())
        if topic in retention_bytes and needed > retention_bytes[topic]
    ]
