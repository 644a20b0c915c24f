"""This machine's NVIDIA devices, asked through NVML: no exporter needed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from time import time
from typing import Any

from infra.collect.mapping.schema import ExporterProfile
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from infra.console.errors import HarmonyError
from infra.console.host import need

# Of the reasons for a lower clock: hardware slowdown, thermal slowdown of software and hardware, power brake.
SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80

PROFILE = ExporterProfile.model_validate(
    {
        "name": "nvml",
        "about": "This machine's NVIDIA devices",
        "kind": "gpu",
        "replica": "{instance}",
        "parts": ["gpu"],
        "workload": "{workload}",
        "fields": {
            "sm_active_ratio": {"metric": "nvml_utilization_percent", "scale": 0.01},
            "memory_used_bytes": "nvml_memory_used_bytes",
            "memory_total_bytes": "nvml_memory_total_bytes",
            "power_w": {"metric": "nvml_power_milliwatts", "scale": 0.001},
            "temperature_c": "nvml_temperature_celsius",
            "sm_clock_mhz": "nvml_sm_clock_megahertz",
            "throttled_ratio": {"metric": "nvml_clocks_event_reasons", "any_bits": SLOWDOWN_BITS},
            "energy_total_j": {"metric": "nvml_energy_millijoules_total", "scale": 0.001},
            "ecc_errors_total": "nvml_uncorrected_errors_total",
        },
    }
)


class Nvml:
    """Reads every device once per call.

    Args:
        labels: of every point; `workload` among them names the workload.
        devices: indices to read; empty = all.
        library: stands in for pynvml.

    Raises:
        HarmonyError: the package is not installed, there is no driver, or no such device.
    """

    def __init__(
        self,
        labels: dict[str, str],
        devices: tuple[int, ...] = (),
        library: Any = None,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._nvml = library or need("pynvml", "`harmony collect nvml`")
        self._labels = {"instance": socket.gethostname(), **labels}
        self._now_ms = now_ms
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            missing = [n for n in devices if not 0 <= n < count]
            if missing or not count:
                what = f"--device: there is no device {missing[0]}; NVML" if missing else "NVML"
                raise HarmonyError(f"{what} sees {count} devices here.", 2 if missing else 1)
            self._handles = {n: self._nvml.nvmlDeviceGetHandleByIndex(n) for n in devices or range(count)}
        except self._nvml.NVMLError as error:
            raise HarmonyError(
                f"NVML does not answer here ({error}): this machine has no NVIDIA GPU, or its driver is not installed. "
                "`harmony collect host` reads CPU and memory; `harmony collect prometheus` reads exporters elsewhere."
            ) from None

    def __call__(self) -> Round:
        """What each device can tell; a device that fails is left out and named."""
        ts_ms = self._now_ms()
        points: list[Point] = []
        failures: dict[str, str] = {}
        for number, handle in self._handles.items():
            labels = {**self._labels, "gpu": str(number)}
            measured = list(self._measured(handle))
            points += [Point(name, labels, ts_ms, value) for name, value in measured]
            if not measured:
                failures[f"device {number}"] = "nothing of it can be read"
        return Round(points, failures, len(self._handles))

    def _measured(self, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        ways: dict[str, Callable[[], Any]] = {
            "nvml_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "nvml_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "nvml_memory_total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "nvml_power_milliwatts": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
            "nvml_temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "nvml_sm_clock_megahertz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            # The older of two names, which every driver and package knows.
            "nvml_clocks_event_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            "nvml_energy_millijoules_total": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
            "nvml_uncorrected_errors_total": lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        }
        for name, way in ways.items():
            try:
                yield name, float(way())
            except nvml.NVMLError:
                # Not every device tells everything: a MIG parent has no utilization, some boards no power.
                continue
