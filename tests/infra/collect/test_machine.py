"""This machine's own telemetry: /proc as a test lays it out, and NVML as a stand-in answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.collect.mapping.readings import Reader
from infra.collect.mapping.workloads import Identities
from infra.collect.sources.host import PROFILE as HOST_PROFILE
from infra.collect.sources.host import Host
from infra.collect.sources.nvml import PROFILE as NVML_PROFILE
from infra.collect.sources.nvml import Nvml
from infra.console.errors import HarmonyError
from streams.records.schema import SampleRecord
from tests.infra.collect.samples import TS_MS, packed


def proc(root: Path, idle: int, busy: int, uptime_s: float, energy_uj: int) -> None:
    for path, text in {
        "proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 {busy} 0\ncpu0 1 2 3\n",
        "proc/uptime": f"{uptime_s} 5.0\n",
        "proc/meminfo": "MemTotal:  4096 kB\nMemFree:  100 kB\nMemAvailable:  1024 kB\n",
        "sys/class/powercap/intel-rapl:0/energy_uj": f"{energy_uj}\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "3000000\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "2\n",
        "sys/class/thermal/thermal_zone0/temp": "45000\n",
        "sys/class/thermal/thermal_zone1/temp": "61500\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_host(tmp_path: Path) -> None:
    clock = [TS_MS]
    by = Reader((HOST_PROFILE,), Identities())
    proc(tmp_path, idle=1000, busy=500, uptime_s=100.0, energy_uj=5_000_000)
    host = Host({"workload": "batch/cpu", "instance": "n1"}, tmp_path, lambda: clock[0])
    first = by.read(host().points)
    told = {"memory_used_bytes", "memory_total_bytes", "temperature_c"}
    assert set(first[0].values) == {*told, "sm_clock_mhz", "energy_total_j", "ecc_errors_total"}
    clock[0] += 5000
    proc(tmp_path, idle=1100, busy=800, uptime_s=105.0, energy_uj=605_000_000)
    (record,) = packed(by.read(host().points))
    assert isinstance(record, SampleRecord)
    assert (record.workload, record.samples[0].source) == ("batch/cpu", "n1")
    assert record.samples[0].values == {
        "sm_active_ratio": 0.75,
        "memory_used_bytes": 3072 * 1024.0,
        "memory_total_bytes": 4096 * 1024.0,
        "power_w": 120.0,
        "temperature_c": 61.5,
        "sm_clock_mhz": 2700.0,
        "energy_total_j": 605.0,
        "ecc_errors_total": 2.0,
    }


def test_host_without_energy_or_temperature_says_what_it_knows(tmp_path: Path) -> None:
    proc(tmp_path, 1, 1, 1.0, 1)
    for path in ("class/powercap/intel-rapl:0/energy_uj", "devices/system/edac/mc/mc0/ue_count"):
        (tmp_path / "sys" / path).unlink()
    for cpu in (0, 1):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").write_text("<unknown>")
    for zone in (0, 1):
        (tmp_path / f"sys/class/thermal/thermal_zone{zone}/temp").write_text("no number")
    (reading,) = Reader((HOST_PROFILE,), Identities()).read(Host({"workload": "w"}, tmp_path)().points)
    assert set(reading.values) == {"memory_used_bytes", "memory_total_bytes"}


def test_host_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(HarmonyError, match="reads Linux's /proc"):
        Host({"workload": "w"}, tmp_path)


def test_this_machine(tmp_path: Path) -> None:
    if not Path("/proc/stat").is_file():
        pytest.skip("no /proc here")
    (reading,) = Reader((HOST_PROFILE,), Identities()).read(Host({"workload": "w"})().points)
    assert 0 < reading.values["memory_used_bytes"] < reading.values["memory_total_bytes"]
    packed([reading])


class NVMLError(Exception):
    """As pynvml's."""


def library(devices: int = 2, fault: str | None = None) -> SimpleNamespace:
    """Stands in for pynvml; every device but the first tells neither power nor energy nor memory errors."""

    def initialise() -> None:
        if fault:
            raise NVMLError(fault)

    def first_alone(handle: int, value: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return value

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlInit=initialise,
        nvmlDeviceGetCount=lambda: devices,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87 - handle, memory=3),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2**30, total=2**32),
        nvmlDeviceGetPowerUsage=lambda handle: first_alone(handle, 312_500),
        nvmlDeviceGetTemperature=lambda handle, _: 60 + handle,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1_980 - 780 * handle + 9_000 * (kind != 1),
        # The first is at its power limit, the second too hot as well.
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4 | 0x40 * handle,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: first_alone(handle, 7_000_500),
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, span: first_alone(handle, 2 * kind + 9 * span),
    )


def test_nvml() -> None:
    read = Nvml({"workload": "w", "instance": "n1"}, library=library(), now_ms=lambda: TS_MS)
    (record,) = packed(Reader((NVML_PROFILE,), Identities()).read(read().points))
    assert isinstance(record, SampleRecord)
    first, second = record.samples
    assert (first.source, second.source) == ("n1/0", "n1/1")
    memory = {"memory_used_bytes": 2.0**30, "memory_total_bytes": 2.0**32}
    counters = {"energy_total_j": 7_000.5, "ecc_errors_total": 2.0}
    calm, hot = {"sm_clock_mhz": 1_980.0, "throttled_ratio": 0.0}, {"sm_clock_mhz": 1_200.0, "throttled_ratio": 1.0}
    assert first.values == {
        "sm_active_ratio": 0.87,
        "power_w": 312.5,
        "temperature_c": 60.0,
        **memory,
        **calm,
        **counters,
    }
    unknown = {"power_w": None, **dict.fromkeys(counters)}
    assert second.values == {"sm_active_ratio": 0.86, "temperature_c": 61.0, **memory, **hot, **unknown}


def test_nvml_reads_the_devices_that_are_named() -> None:
    read = Nvml({"workload": "w", "instance": "n1"}, (1,), library=library())
    assert {p.labels["gpu"] for p in read().points} == {"1"}
    with pytest.raises(HarmonyError, match="there is no device 7; NVML sees 2 devices") as caught:
        Nvml({"workload": "w"}, (7,), library=library())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("devices", "fault", "words"), [(0, None, "sees 0 devices"), (2, "Driver Not Loaded", "no NVIDIA GPU")]
)
def test_a_machine_without_a_gpu_gets_a_clear_answer(devices: int, fault: str | None, words: str) -> None:
    with pytest.raises(HarmonyError, match=words):
        Nvml({"workload": "w"}, library=library(devices, fault))
