"""This machine as one device, for workloads that compute on CPUs: read from /proc and /sys, no exporter needed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from time import time

from infra.collect.mapping.schema import ExporterProfile
from infra.collect.points import Point
from infra.collect.sources.scrape import Round
from infra.console.errors import HarmonyError

_KIB = 1_024
_MICRO, _MILLI = 1e-6, 1e-3

PROFILE = ExporterProfile.model_validate(
    {
        "name": "host",
        "about": "This machine's CPUs and memory",
        "kind": "gpu",
        "replica": "{instance}",
        "workload": "{workload}",
        "fields": {
            "sm_active_ratio": {
                "metric": "host_cpu_idle_ticks_total",
                "per": {"metric": "host_cpu_ticks_total"},
                "increase": True,
                "complement": True,
            },
            "memory_used_bytes": {"metric": "host_memory_total_bytes", "minus": "host_memory_available_bytes"},
            "memory_total_bytes": "host_memory_total_bytes",
            "power_w": {
                "metric": "host_energy_joules_total",
                "per": {"metric": "host_uptime_seconds"},
                "increase": True,
            },
            "temperature_c": {"metric": "host_temperature_celsius", "combine": "max"},
            "sm_clock_mhz": {"metric": "host_cpu_clock_kilohertz", "scale": 0.001},
            "energy_total_j": "host_energy_joules_total",
            "ecc_errors_total": "host_memory_errors_total",
        },
    }
)


class Host:
    """Reads this machine once per call.

    Args:
        labels: of every point; `workload` among them names the workload.
        root: where /proc and /sys are; another one for the host's as mounted into a container.

    Raises:
        HarmonyError: there is no /proc here.
    """

    def __init__(
        self,
        labels: dict[str, str],
        root: Path = Path("/"),
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
    ) -> None:
        self._labels = {"instance": socket.gethostname(), **labels}
        self._root, self._now_ms = root, now_ms
        if not (root / "proc/stat").is_file():
            raise HarmonyError(f"{root / 'proc/stat'} is not there: `harmony collect host` reads Linux's /proc.")

    def __call__(self) -> Round:
        """CPU time, memory, and, where this machine tells them, energy, clock, memory errors and temperature."""
        ts_ms = self._now_ms()
        busy = [int(ticks) for ticks in self._text("proc/stat").split("\n", 1)[0].split()[1:]]
        # user nice system idle iowait irq softirq steal; guest time is in user already.
        values = {
            "host_cpu_idle_ticks_total": float(sum(busy[3:5])),
            "host_cpu_ticks_total": float(sum(busy[:8])),
            "host_uptime_seconds": float(self._text("proc/uptime").split()[0]),
        }
        memory = dict(line.split(":", 1) for line in self._text("proc/meminfo").splitlines() if ":" in line)
        for name, key in (("total", "MemTotal"), ("available", "MemAvailable")):
            if key in memory:
                values[f"host_memory_{name}_bytes"] = float(memory[key].split()[0]) * _KIB
        energy = self._readable("sys/class/powercap", "intel-rapl:?/energy_uj")
        if energy:
            values["host_energy_joules_total"] = sum(energy) * _MICRO
        clocks = self._readable("sys/devices/system/cpu", "cpu*/cpufreq/scaling_cur_freq")
        if clocks:
            values["host_cpu_clock_kilohertz"] = sum(clocks) / len(clocks)
        uncorrected = self._readable("sys/devices/system/edac/mc", "mc*/ue_count")
        if uncorrected:
            values["host_memory_errors_total"] = sum(uncorrected)
        warmest = self._readable("sys/class/thermal", "thermal_zone*/temp")
        if warmest:
            values["host_temperature_celsius"] = max(warmest) * _MILLI
        return Round([Point(name, self._labels, ts_ms, value) for name, value in values.items()])

    def _text(self, path: str) -> str:
        return (self._root / path).read_text(encoding="ascii", errors="replace")

    def _readable(self, directory: str, pattern: str) -> list[float]:
        """Numbers of files that may be absent, or root's alone."""
        values = []
        for path in sorted((self._root / directory).glob(pattern)):
            try:
                values.append(float(path.read_text(encoding="ascii")))
            except (OSError, ValueError):
                continue
        return values
