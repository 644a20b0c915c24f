"""Facts and series of a page as columns, which take a fraction of the bytes of one map per workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeVar, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.pages.page import SeriesState, WorkloadFacts
from streams.records.facts import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SloCounts

_CENSORED, _RESET = 1, 2

R = TypeVar("R")


class FactColumns(msgspec.Struct, frozen=True):
    """Little-endian columns, one entry per workload; rare facts only for the rows that have them."""

    num_samples: bytes
    newest_ts_ms: bytes
    sources_seen: bytes
    sources_known: bytes
    flags: bytes
    fleet: tuple[tuple[int, FleetFacts], ...] = ()
    outcomes: tuple[tuple[int, tuple[OutcomeFact, ...]], ...] = ()
    batch: tuple[tuple[int, tuple[BatchQueue, ...]], ...] = ()
    slo: tuple[tuple[int, tuple[SloCounts, ...]], ...] = ()


class SeriesColumns(msgspec.Struct, frozen=True):
    """One row per (workload, source); `counters` float64 [m, C], `present` bits [m, C] in the order of `names`."""

    workload_rows: bytes
    sources: tuple[str, ...]
    ts_ms: bytes
    names: tuple[str, ...]
    counters: bytes
    present: bytes
    hists: tuple[tuple[int, str, HistogramState], ...] = ()
    older_ts_ms: tuple[tuple[int, str, int], ...] = ()


def pack_facts(facts: Sequence[WorkloadFacts]) -> FactColumns:
    """Facts, aligned with the page's workloads, as columns."""
    return FactColumns(
        num_samples=_bytes_of("<i4", [f.num_samples for f in facts]),
        newest_ts_ms=_bytes_of("<i8", [f.newest_ts_ms for f in facts]),
        sources_seen=_bytes_of("<i4", [f.sources_seen for f in facts]),
        sources_known=_bytes_of("<i4", [f.sources_known for f in facts]),
        flags=bytes(_CENSORED * f.censored | _RESET * f.reset for f in facts),
        fleet=tuple((row, f.fleet) for row, f in enumerate(facts) if f.fleet is not None),
        outcomes=tuple((row, f.outcomes) for row, f in enumerate(facts) if f.outcomes),
        batch=tuple((row, f.batch) for row, f in enumerate(facts) if f.batch),
        slo=tuple((row, f.slo) for row, f in enumerate(facts) if f.slo),
    )


class _PageRecords(Sequence[R], ABC):
    """Columns of a page that become records only when a reader accesses single entries."""

    def __init__(self) -> None:
        self._cached_records: tuple[R, ...] | None = None

    @abstractmethod
    def _records(self) -> tuple[R, ...]:
        """All records of the columns."""

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[R]: ...
    def __getitem__(self, at: int | slice) -> R | Sequence[R]:
        if self._cached_records is None:
            self._cached_records = self._records()
        return self._cached_records[at]

    def __iter__(self) -> Iterator[R]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


class PageFacts(_PageRecords[WorkloadFacts]):
    """The facts of a page.

    Raises:
        ValueError: the columns do not fit each other.
    """

    def __init__(self, columns: FactColumns) -> None:
        super().__init__()
        self.columns = columns
        k, c = len(columns.flags), columns
        sizes = tuple(map(len, (c.num_samples, c.newest_ts_ms, c.sources_seen, c.sources_known)))
        if sizes != (4 * k, 8 * k, 4 * k, 4 * k):
            raise ValueError(f"columns of the facts of {k} workloads have {sizes} bytes")
        if any(not _within(k, entries) for entries in (c.fleet, c.outcomes, c.batch, c.slo)):
            raise ValueError(f"facts of workloads beyond the {k} of the page")

    @classmethod
    def from_records(cls, facts: Sequence[WorkloadFacts]) -> PageFacts:
        """Columns of any facts."""
        return facts if isinstance(facts, PageFacts) else cls(pack_facts(facts))

    def __len__(self) -> int:
        return len(self.columns.flags)

    def _records(self) -> tuple[WorkloadFacts, ...]:
        return _unpack_facts(self.columns)

    def sampled(self) -> NDArray[np.int64]:
        """Rows of workloads with samples."""
        return np.flatnonzero(np.frombuffer(self.columns.num_samples, "<i4"))

    def newest_ts_ms(self) -> NDArray[np.int64]:
        """[k] time of the newest sample, or of the newest fact where there is none."""
        return np.frombuffer(self.columns.newest_ts_ms, "<i8").astype(np.int64)


def _unpack_facts(columns: FactColumns) -> tuple[WorkloadFacts, ...]:
    """Inverse of `pack_facts`."""
    fleet, outcomes = dict(columns.fleet), dict(columns.outcomes)
    batch, slo = dict(columns.batch), dict(columns.slo)
    return tuple(
        WorkloadFacts(
            num_samples=num_samples,
            newest_ts_ms=newest_ts_ms,
            sources_seen=num_seen,
            sources_known=num_known,
            censored=bool(flags & _CENSORED),
            reset=bool(flags & _RESET),
            fleet=fleet.get(row),
            outcomes=outcomes.get(row, ()),
            batch=batch.get(row, ()),
            slo=slo.get(row, ()),
        )
        for row, (num_samples, newest_ts_ms, num_seen, num_known, flags) in enumerate(
            zip(
                _numbers_of("<i4", columns.num_samples),
                _numbers_of("<i8", columns.newest_ts_ms),
                _numbers_of("<i4", columns.sources_seen),
                _numbers_of("<i4", columns.sources_known),
                columns.flags,
                strict=True,
            )
        )
    )


def pack_series(series: Sequence[SeriesState], workloads: Sequence[str]) -> SeriesColumns:
    """Series as columns; each series' workload must be one of the page's."""
    row_of = {workload: row for row, workload in enumerate(workloads)}
    names = tuple(sorted({name for s in series for name in s.counters}))
    counters: NDArray[np.float64] = np.array(
        [[s.counters.get(name, 0.0) for name in names] for s in series], "<f8"
    ).reshape(len(series), len(names))
    present = np.array([[name in s.counters for name in names] for s in series], np.bool_)
    return SeriesColumns(
        workload_rows=_bytes_of("<i4", [row_of[s.workload] for s in series]),
        sources=tuple(s.source for s in series),
        ts_ms=_bytes_of("<i8", [s.ts_ms for s in series]),
        names=names,
        counters=counters.tobytes(),
        present=np.packbits(present).tobytes(),
        hists=tuple((row, name, s.hists[name]) for row, s in enumerate(series) for name in sorted(s.hists)),
        older_ts_ms=tuple(
            (row, name, s.older_ts_ms[name]) for row, s in enumerate(series) for name in sorted(s.older_ts_ms)
        ),
    )


class PageSeries(_PageRecords[SeriesState]):
    """The series of a page, kept as columns, because a worker that starts reads millions of them.

    Raises:
        ValueError: the columns do not fit each other.
    """

    def __init__(self, columns: SeriesColumns, workloads: Sequence[str]) -> None:
        super().__init__()
        self.columns = columns
        self._workloads = workloads
        m, cells = len(columns.sources), len(columns.sources) * len(columns.names)
        sizes = tuple(map(len, (columns.workload_rows, columns.ts_ms, columns.counters, columns.present)))
        if sizes != (4 * m, 8 * m, 8 * cells, (cells + 7) // 8):
            raise ValueError(f"columns of {m} series and {len(columns.names)} counters have {sizes} bytes")
        rows = np.frombuffer(columns.workload_rows, "<i4")
        if m and not 0 <= rows.min() <= rows.max() < len(workloads):
            raise ValueError(f"series of workloads beyond the {len(workloads)} of the page")
        if not (_within(m, columns.hists) and _within(m, columns.older_ts_ms)):
            raise ValueError(f"fields of series beyond the {m} of the page")

    @classmethod
    def from_records(cls, series: Sequence[SeriesState], workloads: Sequence[str]) -> PageSeries:
        """Columns of any series of these workloads."""
        return series if isinstance(series, PageSeries) else cls(pack_series(series, workloads), workloads)

    def __len__(self) -> int:
        return len(self.columns.sources)

    def _records(self) -> tuple[SeriesState, ...]:
        return _unpack_series(self)

    def workloads(self) -> list[str]:
        """Workload of each series [m]."""
        return [self._workloads[row] for row in _numbers_of("<i4", self.columns.workload_rows)]

    def ts_ms(self) -> NDArray[np.int64]:
        """[m] event time of the newest sample."""
        return np.frombuffer(self.columns.ts_ms, "<i8").astype(np.int64)

    def counters(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[m, C] values in the order of the names, and the mask of those present."""
        shape = len(self), len(self.columns.names)
        bits = np.frombuffer(self.columns.present, np.uint8)
        present = np.unpackbits(bits, count=shape[0] * shape[1]).astype(bool).reshape(shape)
        return np.frombuffer(self.columns.counters, "<f8").reshape(shape), present


def _unpack_series(series: PageSeries) -> tuple[SeriesState, ...]:
    """Inverse of `pack_series`."""
    columns, m = series.columns, len(series)
    counters, present = (cells.tolist() for cells in series.counters())
    hists: list[dict[str, HistogramState]] = [{} for _ in range(m)]
    for row, name, state in columns.hists:
        hists[row][name] = state
    older: list[dict[str, int]] = [{} for _ in range(m)]
    for row, name, ts_ms in columns.older_ts_ms:
        older[row][name] = ts_ms
    named = zip(series.workloads(), columns.sources, series.ts_ms().tolist(), strict=True)
    return tuple(
        SeriesState(
            workload=workload,
            source=source,
            ts_ms=ts_ms,
            counters={
                name: number
                for name, number, there in zip(columns.names, counters[i], present[i], strict=True)
                if there
            },
            hists=hists[i],
            older_ts_ms=older[i],
        )
        for i, (workload, source, ts_ms) in enumerate(named)
    )


def _within(num_rows: int, entries: Sequence[tuple[int, *tuple[object, ...]]]) -> bool:
    """Whether the row of every entry lies in [0, num_rows)."""
    rows = itemgetter(0)
    return not entries or (min(map(rows, entries)) >= 0 and max(map(rows, entries)) < num_rows)


def _bytes_of(dtype: str, numbers: Sequence[int]) -> bytes:
    return np.array(numbers, dtype).tobytes()


def _numbers_of(dtype: str, column: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(column, dtype).tolist()
    return numbers
