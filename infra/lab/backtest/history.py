"""A workload's past, minute by minute: load, request lengths, replicas, and how many requests were good."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.collect.mapping.readings import SourceReading
from infra.console.errors import HarmonyError
from infra.console.instants import start_problem
from infra.console.tables import cell_problem, column_of, csv_rows, named_cells, number_cell

BIN_S = 60
Float = NDArray[np.float64]
_COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "slo_good_total", "slo_total")
_STARTED, _FINISHED = "requests_started_total", "requests_finished_total"
_MOST_MISSING = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class RecordedHistory:
    """K bins of `BIN_S` seconds from `start_ms` on; NaN where nothing was recorded.

    Attributes:
        rate_rps: float64 [K], arrivals.
        prompt_tokens, output_tokens: float64 [K], means per request.
        replicas: float64 [K], ready.
        good_ratio: float64 [K], share of good requests as measured; NaN where not measured.
        tpot_s: mean seconds per token over the whole time; None where not measured.
        completions_only: arrivals were not counted, so the load misses what queued.
    """

    workload: str
    start_ms: int
    rate_rps: Float
    prompt_tokens: Float
    output_tokens: Float
    replicas: Float
    good_ratio: Float
    tpot_s: float | None = None
    completions_only: bool = False

    @property
    def hours(self) -> float:
        return len(self.rate_rps) * BIN_S / 3600

    @property
    def missing_ratio(self) -> float:
        """Share of bins without load or replicas."""
        return float(np.mean(np.isnan(self.rate_rps) | np.isnan(self.replicas)))

    @property
    def attainment(self) -> float | None:
        """Share of good requests as measured; bins weigh by their load."""
        mask = ~np.isnan(self.good_ratio) & ~np.isnan(self.rate_rps) & (self.rate_rps > 0)
        if not mask.any():
            return None
        return float(np.average(self.good_ratio[mask], weights=self.rate_rps[mask]))

    def filled(self) -> RecordedHistory:
        """Gaps bridged: load and lengths in a straight line, replicas as they were before.

        Raises:
            HarmonyError: more than half is missing, or there is no load at all.
        """
        if self.missing_ratio > _MOST_MISSING or not np.nansum(self.rate_rps) > 0:
            what = (
                "no requests" if not np.nansum(self.rate_rps) > 0 else f"gaps in {self.missing_ratio:.0%} of its time"
            )
            raise HarmonyError(
                f"The history of {self.workload} has {what}: choose other days, or check with `harmony collect "
                "prometheus --once --dry-run` what is recorded."
            )
        replicas = _forward(self.replicas)
        return RecordedHistory(
            self.workload, self.start_ms, _line(self.rate_rps), _line(self.prompt_tokens), _line(self.output_tokens),
            np.maximum(np.rint(replicas), 0.0), self.good_ratio, self.tpot_s, self.completions_only,
        )  # fmt: skip


@dataclass(slots=True)
class _Bins:
    started: dict[int, float] = field(default_factory=dict)
    counters: dict[str, dict[int, float]] = field(default_factory=lambda: {name: {} for name in _COUNTERS})
    alive: dict[int, set[str]] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)


class HistoryBuilder:
    """Collects readings, in time order per source, into the histories of their workloads."""

    def __init__(self) -> None:
        self._bins: dict[str, _Bins] = {}
        self._last: dict[tuple[str, str, str], float] = {}
        self._tpot: dict[str, list[float]] = {}
        self._completions: set[str] = set()

    def add(self, readings: Iterable[SourceReading]) -> None:
        """Take in readings; device readings say nothing here."""
        for reading in readings:
            if reading.kind == "gpu":
                continue
            bins = self._bins.setdefault(reading.workload, _Bins())
            k = reading.ts_ms // (BIN_S * 1000)
            if reading.kind == "fleet":
                bins.ready[k] = max(bins.ready.get(k, 0.0), reading.values["replicas_ready"])
                continue
            bins.alive.setdefault(k, set()).add(reading.replica)
            name = _STARTED if _STARTED in reading.values else _FINISHED
            if name == _FINISHED and name in reading.values:
                self._completions.add(reading.workload)
            self._gain(reading, name, bins.started, k)
            for counter in _COUNTERS:
                self._gain(reading, counter, bins.counters[counter], k)
            self._token_times(reading)

    def workloads(self) -> Mapping[str, float]:
        """Workloads with requests, and how many."""
        return {w: sum(b.started.values()) for w, b in self._bins.items() if sum(b.started.values()) > 0}

    def history(self, workload: str) -> RecordedHistory:
        """Everything that was read of one workload.

        Raises:
            HarmonyError: nothing was.
        """
        bins = self._bins.get(workload)
        if bins is None or not bins.started:
            raise HarmonyError(f"Nothing is recorded of {workload}.")
        first, last = min(bins.started), max(bins.started)
        size = last - first + 1

        def column(values: Mapping[int, float]) -> Float:
            out = np.full(size, np.nan)
            for k, value in values.items():
                if first <= k <= last:
                    out[k - first] = value
            return out

        started = column(bins.started)
        replicas = column(bins.ready) if bins.ready else column({k: float(len(s)) for k, s in bins.alive.items()})
        sums, counts = self._tpot.get(workload, [0.0, 0.0])
        with np.errstate(divide="ignore", invalid="ignore"):
            prompt = column(bins.counters["prompt_tokens_total"]) / started
            output = column(bins.counters["generation_tokens_total"]) / started
            good = column(bins.counters["slo_good_total"]) / column(bins.counters["slo_total"])
        return RecordedHistory(
            workload, first * BIN_S * 1000, started / BIN_S, _finite(prompt), _finite(output), replicas,
            np.clip(_finite(good), 0.0, 1.0), sums / counts if counts > 0 else None, workload in self._completions,
        )  # fmt: skip

    def _gain(self, reading: SourceReading, name: str, into: dict[int, float], k: int) -> None:
        value = reading.values.get(name)
        if value is None:
            return
        key = reading.workload, reading.source, name
        before = self._last.get(key)
        self._last[key] = value
        if before is not None:
            # A counter that fell has begun anew: what it shows now is what came since.
            into[k] = into.get(k, 0.0) + (value - before if value >= before else value)

    def _token_times(self, reading: SourceReading) -> None:
        state = reading.hists.get("tpot_s")
        if state is None:
            return
        totals = self._tpot.setdefault(reading.workload, [0.0, 0.0])
        for place, (name, value) in enumerate((("tpot sum", state.sum), ("tpot count", state.count))):
            key = reading.workload, reading.source, name
            before = self._last.get(key)
            self._last[key] = value
            if before is not None and value >= before:
                totals[place] += value - before


def _finite(values: Float) -> Float:
    return np.where(np.isfinite(values), values, np.nan)


def _line(values: Float) -> Float:
    indices = np.flatnonzero(~np.isnan(values))
    return np.interp(np.arange(len(values)), indices, values[indices]) if len(indices) else values


def _forward(values: Float) -> Float:
    indices = np.flatnonzero(~np.isnan(values))
    if not len(indices):
        return values
    place = np.maximum(np.searchsorted(indices, np.arange(len(values)), side="right") - 1, 0)
    return values[indices[place]]


# A history as a CSV file: what `harmony replay --rate` reads, with replicas and attainment beside it.


COLUMNS = ("start_s", "rate_rps", "prompt_tokens", "output_tokens", "replicas", "good_ratio")
_LONGEST_S = 10 * 366 * 86_400
_LATEST_S = 1e11  # the year 5138
_REQUIRED = ("start_s", "rate_rps", "replicas")


class HistoryError(HarmonyError):
    """A history file that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rstrip(".") + ".", 2)


def write_history(path: Path, history: RecordedHistory) -> None:
    """Write the file; `start_s` is Unix time. An empty cell was not recorded."""
    with path.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out)
        lines.writerow(COLUMNS)
        columns = (
            history.rate_rps, history.prompt_tokens, history.output_tokens, history.replicas, history.good_ratio
        )  # fmt: skip
        for k, row in enumerate(zip(*columns, strict=True)):
            start_s = history.start_ms // 1000 + k * BIN_S
            lines.writerow([start_s, *("" if math.isnan(v) else f"{v:.6g}" for v in row)])


def read_history(path: Path, workload: str) -> RecordedHistory:
    """Read such a file, plain or gzip; columns but start_s, rate_rps and replicas may be missing.

    Raises:
        HistoryError: not such a file; names line and column.
    """
    rows = csv_rows(path, HistoryError)
    header = next(rows, (1, list[str]()))
    names = [name.strip() for name in header[1]]
    missing = [name for name in _REQUIRED if column_of(names, name) is None]
    if missing:
        raise HistoryError(f"{path}, line 1: the header must hold {', '.join(_REQUIRED)}; {missing[0]} is missing")
    there = [name for name in COLUMNS if column_of(names, name) is not None]
    times: list[float] = []
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS[1:]}
    for line, cells in named_cells(path, header, there, rows, HistoryError):
        by_name = dict(zip(there, cells, strict=True))
        start_s = _number(path, line, "start_s", by_name["start_s"], needed=True)
        problem = (
            start_problem(start_s) if not times else "must ascend; sort the rows" if start_s <= times[-1] else None
        )
        if problem is not None:
            raise HistoryError(cell_problem(path, line, "start_s", by_name["start_s"], problem))
        times.append(start_s)
        for name, column in columns.items():
            column.append(_number(path, line, name, by_name[name]) if name in by_name else math.nan)
    if len(times) < 2:
        raise HistoryError(f"{path}: holds {len(times)} rows; at least two are needed")
    return _binned(path, workload, np.asarray(times), {name: np.asarray(c) for name, c in columns.items()})


def _binned(path: Path, workload: str, times: np.ndarray, columns: dict[str, np.ndarray]) -> RecordedHistory:
    if times[-1] > _LATEST_S or times[-1] - times[0] > _LONGEST_S:
        raise HistoryError(
            f"{path}: reaches from start_s {times[0]:g} to {times[-1]:g}; ten years is the most, in seconds since 1970"
        )
    # A row holds until the next one begins; the last one as long as the one before it.
    end_s = times[-1] + (times[-1] - times[-2])
    grid = np.arange(times[0], end_s, BIN_S)
    rows = np.searchsorted(times, grid, side="right") - 1
    start_ms = round(float(times[0])) * 1000
    c = {name: column[rows] for name, column in columns.items()}
    return RecordedHistory(
        workload, start_ms, c["rate_rps"], c["prompt_tokens"], c["output_tokens"], c["replicas"], c["good_ratio"]
    )


def _number(path: Path, line: int, column: str, text: str, *, needed: bool = False) -> float:
    if not text.strip() and not needed:
        return math.nan
    value = number_cell(text)
    if value is None or value < 0:
        raise HistoryError(cell_problem(path, line, column, text, "is not a number >= 0; correct it"))
    return value
