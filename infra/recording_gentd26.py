"""A GenTD26 directory: a day of an image-generation platform, one CSV file per metric, one sample per pod and minute.

The files join on time and `container_ip`. Demand is the sum over pods of the generative requests (those of the API
layer never reach a GPU as such). A pod without requests has no row, so a time that only the other files know had none.
`pod_gpu_duty_cycle` is the share of time with any kernel running and stands in for SM activity. The size of the pods'
GPU memory is not recorded, so used memory stays without a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from infra.demo.recordings import Readings, Recording
from infra.recording_csv import instant_ms, label, number, read_columns, refuse
from infra.series_cells import missing_cell
from streams.records.facts import FleetFacts

WORKLOAD = "recording/gentd26"
GATEWAY = "gateway"
GENERATIVE = "Generative Requests"
DUTY_CYCLE = "pod_gpu_duty_cycle_anon"
MEMORY_USED = "pod_gpu_memory_used_bytes_anon"
QPS = "qps"
QUEUE_SIZE = "queue_size_raw_anon"
_FILES = (DUTY_CYCLE, MEMORY_USED, QPS, QUEUE_SIZE)
_MOST_PERCENT = 100.1
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
    for line, (time, text, pod) in read_columns(where, ("timestamp_anon", "value", "container_ip")):
        value = number(where, line, "value", text, most=most)
        ts_ms = instant_ms(where, line, "timestamp_anon", time)
        if not missing_cell(pod) and not math.isnan(value):
            values.setdefault((ts_ms, label(where, line, "container_ip", pod)), value)
    return values


def _generative(where: Path) -> _ByTime:
    rates: _ByTime = {}
    columns = ("timestamp_anon", "value", "request_type")
    for line, (time, text, kind) in read_columns(where, columns):
        if kind == GENERATIVE:
            ts_ms = instant_ms(where, line, "timestamp_anon", time)
            rate = number(where, line, "value", text)
            rates[ts_ms] = rates.get(ts_ms, 0.0) + (0.0 if math.isnan(rate) else rate)
    if not rates:
        raise refuse(f"{where}, column request_type: holds no row of {GENERATIVE!r}; give the unfiltered file")
    return rates


def _by_time(where: Path) -> _ByTime:
    return {ts_ms: value for ts_ms, value in _pairs(where) if not math.isnan(value)}


def _pairs(where: Path) -> Iterator[tuple[int, float]]:
    for line, (time, text) in read_columns(where, ("timestamp_anon", "value")):
        yield instant_ms(where, line, "timestamp_anon", time), number(where, line, "value", text)
