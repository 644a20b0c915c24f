"""A cluster's state as telemetry records: what engine, device and fleet exporters would have published."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from infra.simulator.cluster import Cluster, Replica
from infra.simulator.ledger import EngineState, Histogram
from streams.records.facts import FleetFacts, HistogramState, OutcomeFact
from streams.records.schema import encode_fleet, encode_outcome, encode_packed

# Devices: activity, memory, power and temperature of the GPUs under an engine.


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


FLEET_SOURCE = "simulator"
# Well below the record limit of 64 KiB: about 450 bytes a row with both histograms, 100 without.
REQUEST_ROWS = 80
GPU_ROWS = 400

REQUEST_NAMES = (
    "requests_started_total",
    "requests_finished_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_ratio",
    "inter_token_s",
    "slo_good_total",
    "slo_total",
)
_DEMAND_COUNTERS = ("requests_started_total", "prompt_tokens_total", "generation_tokens_total")


@dataclass(frozen=True, slots=True)
class SlotTelemetry:
    """Record values of one workload and slot, all keyed by the workload. `num_samples` counts rows, facts included.

    The last `num_facts` of `requests` are what the orchestrator tells, the others what engines do.
    """

    requests: tuple[bytes, ...]
    gpu: tuple[bytes, ...]
    num_samples: int
    num_facts: int = 0


@dataclass(slots=True)
class _Watch:
    """What the last look at a replica's engine showed."""

    busy_s: float = 0.0
    prefill_s: float = 0.0
    read_s: float = math.nan


_RequestRow = tuple[str, int, tuple[float | None, ...], HistogramState, HistogramState]


class TelemetrySampler:
    """Collects samples of one workload's cluster and packs them slot by slot.

    A replica's metrics are up one step before it is ready (the process starts before its first request) and stay up to
    the end of the slot in which it is released, so that every increase of a counter lies between two samples and none
    is taken over a part of a step.

    Args:
        start_ts_ms: event time of second 0.
        step_s: slot length.
        with_devices: read the GPUs too.
        with_gateway: a source of its own tells what waits at the gateway, also while there is no replica.
    """

    def __init__(
        self,
        workload: str,
        cluster: Cluster,
        device: DeviceModel,
        seed: int,
        start_ts_ms: int,
        step_s: float,
        *,
        with_devices: bool = True,
        with_gateway: bool = False,
    ) -> None:
        self._workload = workload
        self._name = workload.rsplit("/", 1)[-1]
        self._cluster = cluster
        self._device = device
        self._with_devices = with_devices
        self._with_gateway = with_gateway
        self._seed = seed
        self._start_ts_ms = start_ts_ms
        self._step_s = step_s
        self._devices: dict[int, tuple[Device, ...]] = {}
        self._watched: dict[int, _Watch] = {}
        self._gaps: dict[int, tuple[float, int]] = {}
        self._first_open = 0
        self._closed: set[int] = set()
        self._requests: list[_RequestRow] = []
        self._last_requests: list[_RequestRow] = []
        self._gateway_waiting: int | None = None
        self._gpus: list[tuple[str, int, GpuReading]] = []
        self._gateway: list[tuple[int, int]] = []
        self._outcomes: list[OutcomeFact] = []
        self._launched_for: dict[int, str] = {}

    def ts_ms(self, at_s: float) -> int:
        """Event time of an instant; one within a millisecond counts as its end."""
        return self._start_ts_ms + math.ceil(round(at_s * 1000, 6))

    def sample(self, is_read: Callable[[int], bool] = lambda _: True) -> None:
        """Read every replica and device at the cluster's present instant.

        Args:
            is_read: whether the engine of a replica is read, by its id.
        """
        now_ms = self.ts_ms(self._cluster.now_s)
        if self._with_gateway:
            self._gateway_waiting = len(self._cluster.gateway)
            self._gateway.append((now_ms, self._gateway_waiting))
        rows: list[_RequestRow] = []
        for replica in self._open_replicas():
            if self._is_up(replica) and is_read(replica.replica_id):
                rows.append(self._request_row(replica, now_ms))
            if self._with_devices and math.isnan(replica.release_s):
                self._read_devices(replica, now_ms)
            if not math.isnan(replica.ready_s):
                self._report_ready(replica)
        self._requests += rows
        self._last_requests = rows

    def repeat(self) -> None:
        """What stuck exporters tell at the present instant: that which was read last."""
        now_ms = self.ts_ms(self._cluster.now_s)
        self._requests += [
            (source, now_ms, values, ttft, tpot) for source, _, values, ttft, tpot in self._last_requests
        ]
        if self._gateway_waiting is not None:
            self._gateway.append((now_ms, self._gateway_waiting))

    def outcome(self, command_id: str, status: str, at_s: float) -> None:
        """Report what became of a command."""
        self._outcomes.append(OutcomeFact(self.ts_ms(at_s), command_id, status, self._cluster.num_ready))

    def launched(self, command_id: str, replica_ids: tuple[int, ...]) -> None:
        """Remember whose launches these are: each reports `ready` with its lead time."""
        for replica_id in replica_ids:
            self._launched_for[replica_id] = command_id

    def take(self, desired: int) -> SlotTelemetry:
        """Pack and forget everything collected in a slot, with the fleet facts as of now."""
        c = self._cluster
        facts = FleetFacts(self.ts_ms(c.now_s), c.num_ready, c.num_pending, c.num_draining, desired)
        tail = [encode_fleet(self._workload, FLEET_SOURCE, facts)]
        tail += [encode_outcome(self._workload, FLEET_SOURCE, o) for o in self._outcomes]
        packed = SlotTelemetry(
            (*_chunked(self._requests, REQUEST_ROWS, self._pack_requests), *self._pack_gateway(), *tail),
            tuple(_chunked(self._gpus, GPU_ROWS, self._pack_gpus)),
            len(self._requests) + len(self._gpus) + len(self._gateway) + len(tail),
            len(tail),
        )
        self._requests, self._gpus, self._gateway, self._outcomes = [], [], [], []
        for replica in self._open_replicas():
            if not math.isnan(replica.release_s):
                self._closed.add(replica.replica_id)
                for registry in (self._devices, self._watched, self._gaps, self._launched_for):
                    registry.pop(replica.replica_id, None)
        return packed

    def _open_replicas(self) -> list[Replica]:
        """Replicas whose end has not been reported, by id."""
        replicas = self._cluster.replicas
        while self._first_open in self._closed:
            self._closed.discard(self._first_open)
            self._first_open += 1
        return [r for r in replicas[self._first_open :] if r.replica_id not in self._closed]

    def _is_up(self, replica: Replica) -> bool:
        if not math.isnan(replica.ready_s):
            return True
        due_s = replica.command_s + replica.lead_s
        return math.isnan(replica.release_s) and self._cluster.now_s >= due_s - self._step_s

    def _report_ready(self, replica: Replica) -> None:
        command_id = self._launched_for.pop(replica.replica_id, None)
        if command_id is not None:
            lead_s = round(replica.ready_s - replica.command_s, 3)
            # Counted one by one, so that launches of one instant stay distinct facts.
            order = (replica.ready_s, replica.replica_id)
            count = sum((r.ready_s, r.replica_id) <= order for r in self._cluster.ready)
            self._outcomes.append(OutcomeFact(self.ts_ms(replica.ready_s), command_id, "ready", count, lead_s))

    def _source(self, replica: Replica) -> str:
        return f"{self._name}-{replica.replica_id}"

    def _request_row(self, replica: Replica, ts_ms: int) -> _RequestRow:
        state = self._cluster.state_of(replica)
        ledger = replica.ledger
        values = (
            ledger.requests_started_total,
            ledger.requests_finished_total,
            state.prompt_tokens_total,
            state.generation_tokens_total,
            state.running,
            state.waiting,
            round(state.kv_usage_ratio, 5),
            self._inter_token_s(replica, state),
            ledger.slo_good_total,
            ledger.slo_total,
        )
        return self._source(replica), ts_ms, values, _histogram(ledger.ttft_s), _histogram(ledger.tpot_s)

    def _inter_token_s(self, replica: Replica, state: EngineState) -> float | None:
        """Mean time between the tokens of a replica since the last look; None where there were none."""
        before_s, before = self._gaps.get(replica.replica_id, (0.0, 0))
        self._gaps[replica.replica_id] = state.inter_token_s_total, state.inter_tokens_total
        tokens = state.inter_tokens_total - before
        return round((state.inter_token_s_total - before_s) / tokens, 6) if tokens > 0 else None

    def _read_devices(self, replica: Replica, now_ms: int) -> None:
        now_s = self._cluster.now_s
        devices = self._devices.get(replica.replica_id)
        if devices is None:
            count = self._cluster.profile.gpus_per_replica
            devices = tuple(Device(self._device, self._seed, replica.replica_id, i) for i in range(count))
            self._devices[replica.replica_id] = devices
        watch = self._watched.setdefault(replica.replica_id, _Watch())
        state = self._cluster.state_of(replica)
        since_s = now_s - watch.read_s
        busy = min(1.0, (state.busy_s - watch.busy_s) / since_s) if since_s > 0 else 0.0
        prefill = min(busy, (state.prefill_s - watch.prefill_s) / since_s) if since_s > 0 else 0.0
        watch.busy_s, watch.prefill_s, watch.read_s = state.busy_s, state.prefill_s, now_s
        loaded = 1.0
        if math.isnan(replica.ready_s):
            loaded = min(0.99, (now_s - replica.command_s) / replica.lead_s)
        for index, device in enumerate(devices):
            reading = device.read(now_s, busy, prefill, state.kv_usage_ratio, loaded)
            self._gpus.append((f"{self._source(replica)}/gpu-{index}", now_ms, reading))

    def _pack_requests(self, rows: list[_RequestRow]) -> bytes:
        columns = {name: [row[2][i] for row in rows] for i, name in enumerate(REQUEST_NAMES)}
        hist = {"ttft_s": [row[3] for row in rows], "tpot_s": [row[4] for row in rows]}
        return encode_packed("requests", self._workload, [r[0] for r in rows], [r[1] for r in rows], columns, hist)

    def _pack_gateway(self) -> list[bytes]:
        """It starts no request itself, which it says, so that demand stays observed without any engine."""
        if not self._gateway:
            return []
        instants, waiting = zip(*self._gateway, strict=True)
        columns = {name: [0.0] * len(instants) for name in _DEMAND_COUNTERS} | {"num_requests_waiting": list(waiting)}
        sources = [f"{self._name}-gateway"] * len(instants)
        return [encode_packed("requests", self._workload, sources, instants, columns)]

    def _pack_gpus(self, rows: list[tuple[str, int, GpuReading]]) -> bytes:
        columns = {name: [row[2][i] for row in rows] for i, name in enumerate(GpuReading._fields)}
        return encode_packed("gpu", self._workload, [r[0] for r in rows], [r[1] for r in rows], columns)


def _histogram(h: Histogram) -> HistogramState:
    return HistogramState(tuple(h.bounds), tuple(h.cumulative()), h.count, round(h.sum, 6))


def _chunked(rows: list[Any], most: int, pack: Callable[[list[Any]], bytes]) -> list[bytes]:
    return [pack(rows[i : i + most]) for i in range(0, len(rows), most)]
