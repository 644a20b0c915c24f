"""Recorded telemetry, read from files and cut into the records that its publishers would have sent, slot by slot.

Two formats: a DCGM log and a GenTD26 directory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.console.tables import InstantColumn, cell_problem, csv_rows, missing_cell, named_cells, number_cell
from infra.simulator.telemetry import SlotTelemetry
from streams.catalogue import Source
from streams.records.facts import FleetFacts
from streams.records.limits import is_plain
from streams.records.schema import MAX_LABEL_CHARS, encode_fleet, encode_packed

# Columns of a recording's CSV files, cell by cell; a mistake is named with file, line, column and remedy.


def refuse(sentence: str) -> HarmonyError:
    """The error for a recording that cannot be used (exit code 2)."""
    return HarmonyError(f"{sentence}.", 2)


def read_columns(where: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the cells of the wanted columns, in the order wanted; other columns are ignored.

    Raises:
        HarmonyError: no such file, not CSV, a wanted column is missing, a line is too short, or there is no row.
    """
    rows = csv_rows(where, refuse)
    header = next(rows, None)
    if header is None:
        raise refuse(f"{where}: is empty; give a CSV file with the header {','.join(columns)}")
    line = 0
    for line, cells in named_cells(where, header, columns, rows, refuse):
        yield line, cells
    if line == 0:
        raise refuse(f"{where}: has a header but no row; give a file with at least one")


def label(where: Path, line: int, column: str, text: str) -> str:
    """A name as telemetry may hold it.

    Raises:
        HarmonyError: empty, too long, or with characters that have no place in a label.
    """
    if not is_plain(text, MAX_LABEL_CHARS):
        problem = f"is no name of 1 to {MAX_LABEL_CHARS} printable characters without markup; correct the cell"
        raise refuse(cell_problem(where, line, column, text, problem))
    return text


def number(where: Path, line: int, column: str, text: str, *, most: float = math.inf) -> float:
    """A number in [0, most], NaN where missing.

    Raises:
        HarmonyError: not a number, or outside.
    """
    if missing_cell(text):
        return math.nan
    value = number_cell(text)
    if value is None:
        problem = "is not a number; correct or empty the cell"
        raise refuse(cell_problem(where, line, column, text, problem))
    if not 0 <= value <= most:
        bound = f"to {most:g}" if math.isfinite(most) else "upwards"
        raise refuse(cell_problem(where, line, column, text, f"is not within 0 {bound}; correct or empty the cell"))
    return value


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
        slots = np.unique(np.concatenate([r.ts_ms // step_ms for r in self._readings()])).tolist()
        numbers: list[int] = []
        for slot, following in zip(slots, [*slots[1:], slots[-1] + 1], strict=True):
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

    if not path.exists():
        raise refuse(f"{path}: there is no such file or directory; check the path")
    return read_gentd26(path) if path.is_dir() else read_dcgm(path)


def workload_of(path: Path) -> str:
    """Workload id of a recorded file: `recording/<stem>`, what a label may not hold replaced."""
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    return "recording/" + (re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:100] or "unnamed")


# GPU telemetry logged by DCGM at some 10 Hz: one row per tick and GPU, in a CSV file, plain or gzip.
#
# DCGM exporters are scraped, so the log is thinned to what a scrape once a second sees: of every GPU the last reading
# of the second, with its own time.


INTERVAL_MS = 1_000
COLUMNS = (
    "timestamp",
    "gpu",
    "power_w",
    "temp_c",
    "mem_used_mib",
    "mem_total_mib",
    "sm_active",
    "tensor_active",
)
_NAMES = (
    "power_w",
    "temperature_c",
    "memory_used_bytes",
    "memory_total_bytes",
    "sm_active_ratio",
    "tensor_active_ratio",
)
_MIB = 1 << 20
# The profiling counters round: a share a little above 1 is a share of 1.
_MOST_RATIO = 1.001
_MOST_C = 150.0


def read_dcgm(path: Path) -> Recording:
    """Read one log; each GPU is a source (`gpu-<index>`, or its UUID) of the workload `recording/<file stem>`.

    Raises:
        HarmonyError: not such a log; names line and column (exit code 2).
    """
    newest: dict[tuple[int, str], tuple[int, tuple[float, ...]]] = {}
    times = InstantColumn(path, "timestamp", refuse)
    for line, cells in read_columns(path, COLUMNS):
        time, gpu, *measured = cells
        ts_ms = times.read(line, time).ms
        source = label(path, line, "gpu", gpu)
        if source.isdigit():
            source = f"gpu-{source}"
        previous = newest.get((ts_ms // INTERVAL_MS, source))
        if previous is None or ts_ms >= previous[0]:
            newest[ts_ms // INTERVAL_MS, source] = ts_ms, _values(path, line, measured)
    samples = {(ts_ms, source): values for (_, source), (ts_ms, values) in newest.items()}
    return Recording(path.name, workload_of(path), INTERVAL_MS, gpu=Readings.of("gpu", _NAMES, samples))


def _values(path: Path, line: int, cells: list[str]) -> tuple[float, ...]:
    power, temperature, used, total, sm, tensor = cells
    used_mib = number(path, line, "mem_used_mib", used)
    total_mib = number(path, line, "mem_total_mib", total)
    if used_mib > total_mib:
        raise refuse(
            f"{path}, line {line}, column mem_used_mib: {used} is more than mem_total_mib {total}; correct the line"
        )
    return (
        number(path, line, "power_w", power),
        number(path, line, "temp_c", temperature, most=_MOST_C),
        used_mib * _MIB,
        total_mib * _MIB,
        min(number(path, line, "sm_active", sm, most=_MOST_RATIO), 1.0),
        min(number(path, line, "tensor_active", tensor, most=_MOST_RATIO), 1.0),
    )


# A GenTD26 directory: a day of an image-generation platform, one CSV file per metric, one sample per pod and minute.
#
# The files join on time and `container_ip`. Demand is the sum over pods of the generative requests (those of the API
# layer never reach a GPU as such). A pod without requests has no row, so a time that only the other files know had
# none. `pod_gpu_duty_cycle` is the share of time with any kernel running and stands in for SM activity. The size of the
# pods' GPU memory is not recorded, so used memory stays without a ratio.


WORKLOAD = "recording/gentd26"
GATEWAY = "gateway"
GENERATIVE = "Generative Requests"
DUTY_CYCLE = "pod_gpu_duty_cycle_anon"
MEMORY_USED = "pod_gpu_memory_used_bytes_anon"
QPS = "qps"
QUEUE_SIZE = "queue_size_raw_anon"
_FILES = (DUTY_CYCLE, MEMORY_USED, QPS, QUEUE_SIZE)
_MOST_PERCENT = 100.1
_TIME = "timestamp_anon"
_GPU_NAMES = ("sm_active_ratio", "memory_used_bytes")
_REQUEST_NAMES = ("requests_started_total", "num_requests_waiting")

_ByTime = dict[int, float]
_ByPod = dict[tuple[int, str], float]


def read_gentd26(directory: Path) -> Recording:
    """Read the four files that say how many requests came, how many waited, and what the pods' GPUs did.

    The rate of requests becomes a counter by integrating it over the interval that ends at each sample. The replica
    count of a time is the number of pods that reported a GPU metric.

    Raises:
        HarmonyError: a file is missing or is not as it should be; names file, line and column (exit code 2).
    """
    duty = _by_pod(_file(directory, DUTY_CYCLE), _MOST_PERCENT)
    memory = _by_pod(_file(directory, MEMORY_USED))
    qps = _generative(_file(directory, QPS))
    queue = _by_time(_file(directory, QUEUE_SIZE))
    pods = sorted(duty.keys() | memory.keys())
    if not pods:
        raise refuse(f"{_file(directory, DUTY_CYCLE)}: names no pod; give the rows their container_ip")
    times = sorted({ts_ms for ts_ms, _ in pods} | qps.keys() | queue.keys())
    gpu = {key: (min(duty.get(key, math.nan) / 100, 1.0), memory.get(key, math.nan)) for key in pods}
    requests: dict[tuple[int, str], tuple[float, ...]] = {}
    started = 0.0
    for before_ms, ts_ms in zip([times[0], *times], times, strict=False):
        started += qps.get(ts_ms, 0.0) * (ts_ms - before_ms) / 1000
        requests[ts_ms, GATEWAY] = (round(started, 9), queue.get(ts_ms, math.nan))
    return Recording(
        directory.name or WORKLOAD,
        WORKLOAD,
        _interval_ms(times),
        Readings.of("requests", _REQUEST_NAMES, requests),
        Readings.of("gpu", _GPU_NAMES, gpu),
        _fleet(pods),
    )


def _interval_ms(times: list[int]) -> int:
    return max(1, round(median(b - a for a, b in pairwise(times)))) if len(times) > 1 else 60_000


def _fleet(pods: list[tuple[int, str]]) -> tuple[FleetFacts, ...]:
    counts: dict[int, int] = {}
    for ts_ms, _ in pods:
        counts[ts_ms] = counts.get(ts_ms, 0) + 1
    return tuple(FleetFacts(ts_ms, count, 0, 0) for ts_ms, count in counts.items())


def _file(directory: Path, name: str) -> Path:
    for candidate in (directory / f"{name}.csv.gz", directory / f"{name}.csv"):
        if candidate.is_file():
            return candidate
    raise refuse(f"{directory}: holds no {name}.csv or {name}.csv.gz; a GenTD26 directory needs {', '.join(_FILES)}")


def _by_pod(where: Path, most: float = math.inf) -> _ByPod:
    """Values by time and pod; rows that name no pod are passed over, of repeats the first counts."""
    values: _ByPod = {}
    times = InstantColumn(where, _TIME, refuse)
    for line, (time, text, pod) in read_columns(where, (_TIME, "value", "container_ip")):
        value = number(where, line, "value", text, most=most)
        ts_ms = times.read(line, time).ms
        if not missing_cell(pod) and not math.isnan(value):
            values.setdefault((ts_ms, label(where, line, "container_ip", pod)), value)
    return values


def _generative(where: Path) -> _ByTime:
    rates: _ByTime = {}
    times = InstantColumn(where, _TIME, refuse)
    columns = (_TIME, "value", "request_type")
    for line, (time, text, kind) in read_columns(where, columns):
        if kind == GENERATIVE:
            ts_ms = times.read(line, time).ms
            rate = number(where, line, "value", text)
            rates[ts_ms] = rates.get(ts_ms, 0.0) + (0.0 if math.isnan(rate) else rate)
    if not rates:
        raise refuse(f"{where}, column request_type: holds no row of {GENERATIVE!r}; give the unfiltered file")
    return rates


def _by_time(where: Path) -> _ByTime:
    return {ts_ms: value for ts_ms, value in _pairs(where) if not math.isnan(value)}


def _pairs(where: Path) -> Iterator[tuple[int, float]]:
    times = InstantColumn(where, _TIME, refuse)
    for line, (time, text) in read_columns(where, (_TIME, "value")):
        yield times.read(line, time).ms, number(where, line, "value", text)
