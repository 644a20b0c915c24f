"""Recorded telemetry, read from files and cut into the records that its publishers would have sent, slot by slot.

Two formats: a DCGM log (`infra/recording_dcgm.py`) and a GenTD26 directory (`infra/recording_gentd26.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.recording_csv import refuse
from infra.simulator.telemetry import SlotTelemetry
from streams.catalogue import Source
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_packed

SOURCE = "recording"
DAY_MS = 86_400_000
# About 100 bytes a row: well below the record limit of 64 KiB.
_ROWS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """Samples of one telemetry topic as columns, n rows sorted by time, then by source.

    Attributes:
        kind: of the records, and so the topic.
        names: of the F columns in the record's `values`.
        sources: distinct source names.
        ts_ms: int64 [n], event times.
        source_of: int64 [n], index into `sources`.
        values: float64 [n, F], NaN where nothing was measured.
    """

    kind: Source
    names: tuple[str, ...]
    sources: tuple[str, ...]
    ts_ms: NDArray[np.int64]
    source_of: NDArray[np.int64]
    values: NDArray[np.float64]

    @staticmethod
    def of(kind: Source, names: tuple[str, ...], samples: Mapping[tuple[int, str], tuple[float, ...]]) -> Readings:
        """From (event time, source) -> values."""
        ordered = sorted(samples)
        sources = tuple(sorted({source for _, source in ordered}))
        index = {source: k for k, source in enumerate(sources)}
        return Readings(
            kind,
            names,
            sources,
            np.array([ts_ms for ts_ms, _ in ordered], np.int64),
            np.array([index[source] for _, source in ordered], np.int64),
            np.array([samples[key] for key in ordered], np.float64).reshape(len(ordered), len(names)),
        )

    def packed(self, workload: str, start_ms: int, end_ms: int) -> tuple[int, list[bytes]]:
        """Number of samples in `[start_ms, end_ms)`, and the record values that carry them."""
        first, last = (int(i) for i in np.searchsorted(self.ts_ms, (start_ms, end_ms)))
        parts = [slice(at, min(at + _ROWS, last)) for at in range(first, last, _ROWS)]
        return last - first, [self._pack(workload, part) for part in parts]

    def _pack(self, workload: str, rows: slice) -> bytes:
        columns = {
            name: [None if math.isnan(x) else x for x in self.values[rows, f].tolist()]
            for f, name in enumerate(self.names)
        }
        sources = [self.sources[k] for k in self.source_of[rows].tolist()]
        return encode_packed(self.kind, workload, sources, self.ts_ms[rows].tolist(), columns)


class RecordedSlot(NamedTuple):
    """What was recorded in `[slot * step, (slot + 1) * step)`; nothing where the recording has a gap."""

    slot: int
    telemetry: SlotTelemetry


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Telemetry of one workload as it was recorded.

    Attributes:
        name: of the file or directory, for people.
        interval_ms: between two samples of a source; a step shorter than this would be empty now and then.
        requests, gpu: None where the recording has no telemetry of the kind; at least one is there.
        fleet: replica counts by time.
    """

    name: str
    workload: str
    interval_ms: int
    requests: Readings | None = None
    gpu: Readings | None = None
    fleet: tuple[FleetFacts, ...] = ()

    @property
    def start_ms(self) -> int:
        return min(int(r.ts_ms[0]) for r in self._readings())

    @property
    def end_ms(self) -> int:
        """Event time of the last sample."""
        return max(int(r.ts_ms[-1]) for r in self._readings())

    def before(self, now_ms: int, step_ms: int) -> Recording:
        """The recording itself, or, where it ends in the future, moved back by as many days as whole steps allow.

        The broker's stamp bounds event time, so telemetry of the future would never close a step.
        """
        period_ms = math.lcm(DAY_MS, step_ms)
        shift_ms = max(0, -(-(self.end_ms + step_ms - now_ms) // period_ms)) * period_ms
        if shift_ms == 0:
            return self
        if shift_ms > self.start_ms:
            raise refuse(f"{self.name}: lies in the future and cannot be moved back by whole days and steps")
        return replace(
            self,
            requests=self.requests and replace(self.requests, ts_ms=self.requests.ts_ms - shift_ms),
            gpu=self.gpu and replace(self.gpu, ts_ms=self.gpu.ts_ms - shift_ms),
            fleet=tuple(FleetFacts(f.ts_ms - shift_ms, f.ready, f.pending, f.draining, f.desired) for f in self.fleet),
        )

    def slot_numbers(self, step_ms: int, context_steps: int) -> list[int]:
        """The slots to play: all with data, and of every gap the part in which the workload is still remembered."""
        held = np.unique(np.concatenate([r.ts_ms // step_ms for r in self._readings()])).tolist()
        numbers: list[int] = []
        for slot, following in zip(held, [*held[1:], held[-1] + 1], strict=True):
            numbers += range(slot, min(following, slot + context_steps))
        return numbers

    def slots(self, step_ms: int, context_steps: int) -> Iterator[RecordedSlot]:
        """Telemetry of each slot to play, in order; event times are the recording's own."""
        fleet_ms = np.array([f.ts_ms for f in self.fleet], np.int64)
        for slot in self.slot_numbers(step_ms, context_steps):
            start_ms, end_ms = slot * step_ms, (slot + 1) * step_ms
            first, last = (int(i) for i in np.searchsorted(fleet_ms, (start_ms, end_ms)))
            facts = [encode_fleet(self.workload, SOURCE, f) for f in self.fleet[first:last]]
            num_requests, requests = self.requests.packed(self.workload, start_ms, end_ms) if self.requests else (0, [])
            num_gpu, gpu = self.gpu.packed(self.workload, start_ms, end_ms) if self.gpu else (0, [])
            telemetry = SlotTelemetry((*requests, *facts), tuple(gpu), num_requests + num_gpu + len(facts))
            yield RecordedSlot(slot, telemetry)

    def _readings(self) -> list[Readings]:
        return [r for r in (self.requests, self.gpu) if r is not None]


def read_recording(path: Path) -> Recording:
    """Read a recording: a directory is GenTD26, a file a DCGM log.

    Raises:
        HarmonyError: it cannot be read, is empty, or has other columns; names file, line and column (exit code 2).
    """
    from infra.recording_dcgm import read_dcgm
    from infra.recording_gentd26 import read_gentd26

    if not path.exists():
        raise refuse(f"{path}: there is no such file or directory; check the path")
    return read_gentd26(path) if path.is_dir() else read_dcgm(path)


def workload_of(path: Path) -> str:
    """Workload id of a recorded file: `recording/<stem>`, what a label may not hold replaced."""
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    return "recording/" + (re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:100] or "unnamed")
