"""Facts and series of a page as columns: a fraction of the bytes that one map per workload would take."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.pages import BatchQueue, FleetFacts, HistogramState, OutcomeFact, SeriesState, SloCounts, WorkloadFacts

_CENSORED, _RESET = 1, 2


class FactColumns(msgspec.Struct, frozen=True):
    """Little-endian columns, one entry per workload; what is rare only for the rows that have it."""

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


def unpack_facts(columns: FactColumns) -> tuple[WorkloadFacts, ...]:
    """Inverse of `pack_facts`."""
    fleet, outcomes = dict(columns.fleet), dict(columns.outcomes)
    batch, slo = dict(columns.batch), dict(columns.slo)
    return tuple(
        WorkloadFacts(
            num_samples=num_samples,
            newest_ts_ms=newest_ts_ms,
            sources_seen=seen,
            sources_known=known,
            censored=bool(flags & _CENSORED),
            reset=bool(flags & _RESET),
            fleet=fleet.get(row),
            outcomes=outcomes.get(row, ()),
            batch=batch.get(row, ()),
            slo=slo.get(row, ()),
        )
        for row, (num_samples, newest_ts_ms, seen, known, flags) in enumerate(
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


def unpack_series(columns: SeriesColumns, workloads: Sequence[str]) -> tuple[SeriesState, ...]:
    """Inverse of `pack_series`."""
    m, width = len(columns.sources), len(columns.names)
    counters = np.frombuffer(columns.counters, "<f8", m * width).reshape(m, width).tolist()
    bits = np.frombuffer(columns.present, np.uint8)
    present = np.unpackbits(bits, count=m * width).astype(bool).reshape(m, width).tolist()
    hists: list[dict[str, HistogramState]] = [{} for _ in range(m)]
    for row, name, state in columns.hists:
        hists[row][name] = state
    older: list[dict[str, int]] = [{} for _ in range(m)]
    for row, name, ts_ms in columns.older_ts_ms:
        older[row][name] = ts_ms
    rows = _numbers_of("<i4", columns.workload_rows)
    instants = _numbers_of("<i8", columns.ts_ms)
    return tuple(
        SeriesState(
            workload=workloads[rows[i]],
            source=source,
            ts_ms=instants[i],
            counters={
                name: number
                for name, number, there in zip(columns.names, counters[i], present[i], strict=True)
                if there
            },
            hists=hists[i],
            older_ts_ms=older[i],
        )
        for i, source in enumerate(columns.sources)
    )


def _bytes_of(dtype: str, numbers: Sequence[int]) -> bytes:
    return np.array(numbers, dtype).tobytes()


def _numbers_of(dtype: str, column: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(column, dtype).tolist()
    return numbers
