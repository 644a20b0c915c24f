"""GPU telemetry logged by DCGM at some 10 Hz: one row per tick and GPU, in a CSV file, plain or gzip.

DCGM exporters are scraped, so the log is thinned to what a scrape once a second sees: of every GPU the last reading of
the second, with its own time.
"""

from __future__ import annotations

from pathlib import Path

from infra.demo.recordings import Readings, Recording, workload_of
from infra.recording_csv import instant_ms, label, number, read_columns, refuse

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
    for line, cells in read_columns(path, COLUMNS):
        time, gpu, *measured = cells
        ts_ms = instant_ms(path, line, "timestamp", time)
        source = label(path, line, "gpu", gpu)
        if source.isdigit():
            source = f"gpu-{source}"
        known = newest.get((ts_ms // INTERVAL_MS, source))
        if known is None or ts_ms >= known[0]:
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
