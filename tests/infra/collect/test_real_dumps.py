"""Recorded telemetry of real machines comes to records that stage 1 accepts, with the numbers that it holds."""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from infra.collect.files import read_file
from infra.collect.mapping.readings import SourceReading
from streams.records.schema import SampleRecord
from tests.infra.collect.samples import packed, reader

MIB = 1 << 20


def directory(data_dir: Path, name: str) -> Path:
    path = data_dir / name
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


def readings_in(path: Path, *profiles: str, form: str = "auto", most: int = 10**9) -> list[SourceReading]:
    by = reader(*profiles, workload="recorded")
    portions = read_file(path, form, {}, by, Counter())
    readings = [r for points in islice(portions, most) for r in by.read(points)]
    assert by.tally.refused == {}
    assert by.tally.unplaced == {}
    return readings


@pytest.mark.parametrize(
    ("name", "power_w", "temperature_c", "used_mib", "sm_clock_mhz", "energy_total_j"),
    [
        ("dcgm_tesla-t4_a", 68.244, 74, 5120, 660, 15_152_422.938),
        ("dcgm_tesla-t4_b", 14.512, 24, 0, 300, 48_287.135),
        ("dcgm_l4", 16.365, 31, 0, 210, 4_742.776),
        ("dcgm_l40s", 35.686, 32, 0, 210, 5_551_899.58),
    ],
)
def test_dcgm_exporters(
    data_dir: Path,
    name: str,
    power_w: float,
    temperature_c: float,
    used_mib: int,
    sm_clock_mhz: float,
    energy_total_j: float,
) -> None:
    path = directory(data_dir, "prometheus-dumps") / f"{name}.prom"
    (reading,) = readings_in(path)
    assert reading.kind == "gpu"
    assert set(reading.values) == {
        "sm_active_ratio", "tensor_active_ratio", "memory_used_bytes", "memory_total_bytes", "power_w", "temperature_c",
        "sm_clock_mhz", "energy_total_j",
    }  # fmt: skip
    assert (reading.values["power_w"], reading.values["temperature_c"]) == (power_w, temperature_c)
    assert reading.values["memory_used_bytes"] == used_mib * MIB
    # The exporter counts millijoules.
    assert reading.values["energy_total_j"] == pytest.approx(energy_total_j)
    assert reading.values["sm_clock_mhz"] == sm_clock_mhz
    packed([reading])


def test_a_vllm_server(data_dir: Path) -> None:
    path = directory(data_dir, "prometheus-dumps") / "vllm_qwen2.5-0.5b.prom"
    (reading,) = readings_in(path)
    (record,) = packed([reading])
    assert isinstance(record, SampleRecord)
    assert set(reading.values) == {
        "requests_started_total", "requests_finished_total", "prompt_tokens_total", "generation_tokens_total",
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio",
        "uncached_prompt_tokens_total", "preemptions_total",
    }  # fmt: skip
    # The server had served nothing yet.
    assert set(reading.values.values()) == {0.0}
    assert {name: len(h.le) for name, h in reading.hists.items()} == {"ttft_s": 22, "tpot_s": 19}


@pytest.mark.parametrize("run", ["b1", "t2", "t6"])
def test_eight_h100_logged_by_dcgm(data_dir: Path, run: str) -> None:
    path = directory(data_dir, "h100-dcgm") / f"{run}_telemetry.csv.gz"
    readings = readings_in(path, "gpu-csv", most=1)
    with gzip.open(path, "rt") as lines:
        rows = list(islice(csv.DictReader(lines), len(readings)))
    assert len(readings) == 2_000
    assert {r.source.rpartition("/")[2] for r in readings} == {str(n) for n in range(8)}
    found = {(r.source.rpartition("/")[2], r.ts_ms): r.values for r in readings}
    for row in rows:
        values = found[row["gpu"], round(float(row["timestamp"]) * 1000)]
        assert values["power_w"] == float(row["power_w"])
        assert values["sm_active_ratio"] == pytest.approx(float(row["sm_active"]), abs=1e-3)
        assert values["memory_used_bytes"] == float(row["mem_used_mib"]) * MIB
    packed(readings)


@pytest.mark.parametrize("monitor", ["gpu_power", "gpu_usage", "gpu_temp"])
def test_eight_mi300x_logged_by_amds_tools(data_dir: Path, monitor: str) -> None:
    (path,) = directory(data_dir, "mi300x-vllm").glob(f"{monitor}_*.csv.gz")
    readings = readings_in(path, "gpu-csv")
    assert {r.source.rpartition("/")[2] for r in readings} == {f"card{n}" for n in range(8)}
    assert len(readings) > 1_000
    name = {"gpu_power": "power_w", "gpu_usage": "sm_active_ratio", "gpu_temp": "temperature_c"}[monitor]
    with gzip.open(path, "rt") as lines:
        rows = list(csv.DictReader(lines))
    column = {"gpu_power": "power_watts", "gpu_usage": "gpu_use_percent", "gpu_temp": "temp_edge_celsius"}[monitor]
    scale = 0.01 if monitor == "gpu_usage" else 1.0
    told = [float(row[column]) * scale for row in rows if re.fullmatch(r"[0-9.]+", row[column] or "")]
    assert sum(r.values[name] for r in readings if name in r.values) == pytest.approx(sum(told))
    packed(readings)


def test_nvidia_smi_of_every_machine(data_dir: Path, tmp_path: Path) -> None:
    seen = 0
    for capture in sorted(directory(data_dir, "nvidia-smi-captures").glob("*.gz")):
        lines = gzip.decompress(capture.read_bytes()).decode().splitlines()
        headers = [n for n, line in enumerate(lines) if line.startswith("timestamp, driver_version")]
        assert headers, capture.name
        for n in headers:
            end = next(k for k in range(n, len(lines) + 1) if k == len(lines) or not lines[k].strip())
            path = tmp_path / "capture.csv"
            path.write_text("\n".join(lines[n:end]) + "\n")
            readings = readings_in(path, "nvidia-smi")
            assert len(readings) == end - n - 1, capture.name
            for reading in readings:
                assert {"sm_active_ratio", "memory_used_bytes", "memory_total_bytes"} <= set(reading.values), (
                    capture.name
                )
                assert 5.0 < reading.values.get("power_w", 10.0) < 800.0
            packed(readings)
            seen += len(readings)
    print(f"{seen} rows of nvidia-smi")
    assert seen
