"""What device exporters would read: activity, memory, power and temperature of the GPUs under an engine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One kind of GPU.

    Attributes:
        memory_total_bytes: of the device.
        weights_ratio: share of memory that the weights take once loaded.
        cache_ratio: share that the engine sets aside for the cache; fully allocated, as engines do.
        idle_w, peak_w: power draw idle and at full activity.
        idle_c, peak_c: temperature that those settle at.
        thermal_s: time constant of the temperature.
    """

    name: str = "gpu-80g"
    memory_total_bytes: int = 80 * GIB
    weights_ratio: float = 0.42
    cache_ratio: float = 0.46
    idle_w: float = 95.0
    peak_w: float = 690.0
    idle_c: float = 31.0
    peak_c: float = 74.0
    thermal_s: float = 55.0


class GpuReading(NamedTuple):
    """One device at one instant, with the names and units of the telemetry contract."""

    sm_active_ratio: float
    tensor_active_ratio: float
    memory_used_bytes: int
    memory_total_bytes: int
    power_w: float
    temperature_c: float


class Device:
    """One GPU; its noise is a function of (seed, replica, index) and of the readings before."""

    __slots__ = ("_draws", "_model", "_read_s", "_temperature_c")

    def __init__(self, model: DeviceModel, seed: int, replica_id: int, index: int) -> None:
        self._model = model
        self._draws = random.Random(f"{seed}/{replica_id}/{index}")
        self._temperature_c = model.idle_c + 4 * self._draws.random()
        self._read_s = -math.inf

    def read(
        self, now_s: float, busy_ratio: float, prefill_ratio: float, kv_usage_ratio: float, loaded_ratio: float
    ) -> GpuReading:
        """The device at `now_s`.

        Args:
            busy_ratio: share of the time since the last reading in which the engine ran.
            prefill_ratio: share of it spent on prompts: compute-bound, on the tensor cores.
            kv_usage_ratio: of the cache; a fuller cache keeps more of the device busy while decoding.
            loaded_ratio: 1 once the weights are in memory, less while the replica warms up.
        """
        m, noise = self._model, self._draws.gauss
        decode_ratio = max(0.0, busy_ratio - prefill_ratio)
        sm = _clip(
            prefill_ratio * 0.97 + decode_ratio * (0.55 + 0.35 * kv_usage_ratio) + noise(0, 0.012) * (busy_ratio > 0)
        )
        tensor = _clip(
            prefill_ratio * 0.72 + decode_ratio * (0.06 + 0.16 * kv_usage_ratio) + noise(0, 0.008) * (busy_ratio > 0)
        )
        cache = m.cache_ratio if loaded_ratio >= 1 else 0.0
        memory = int(
            m.memory_total_bytes
            * _clip(0.01 + m.weights_ratio * loaded_ratio + cache + 0.002 * noise(0, 1) * loaded_ratio)
        )
        drive = _clip(0.62 * sm + 0.38 * tensor / 0.72)
        power_w = max(0.0, m.idle_w + (m.peak_w - m.idle_w) * drive + noise(0, 6.0))
        settles_c = m.idle_c + (m.peak_c - m.idle_c) * drive
        if math.isfinite(self._read_s):
            self._temperature_c += (settles_c - self._temperature_c) * (
                1 - math.exp((self._read_s - now_s) / m.thermal_s)
            )
        self._read_s = now_s
        return GpuReading(
            round(sm, 4),
            round(tensor, 4),
            memory,
            m.memory_total_bytes,
            round(power_w, 1),
            round(self._temperature_c + noise(0, 0.3), 1),
        )


def _clip(ratio: float) -> float:
    return min(1.0, max(0.0, ratio))
