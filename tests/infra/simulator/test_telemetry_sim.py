from __future__ import annotations

import math
import random

import numpy as np
import pytest

from agents.policy import Slo, WorkloadSpec
from agents.records import Command, Target
from infra.simulator.arrivals import GeneratedLoad, LoadShape, TokenShape, Trace
from infra.simulator.closed_loop import ClosedLoop, SimulatedWorkload
from infra.simulator.cluster import Cluster, ConstantLeadTime, LognormalLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import BUILT_IN_PROFILES
from infra.simulator.telemetry import Device, DeviceModel, SlotTelemetry, TelemetrySampler
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.page import Page
from streams.records.decode import RecordDecoder, decode
from streams.records.schema import FleetRecord, OutcomeRecord, SampleRecord, encode_tick
from streams.topics import Topics

START_TS_MS = 1_700_000_000_000
STEP_S = 5.0
CONFIG = StreamConfig(step_ms=5_000, grace_ms=5_000, context_steps=16)
TOPICS = Topics(partitions=1)
SHAPE = LoadShape(4.0, TokenShape(600, 0.6), TokenShape(80, 0.6), noise=0.0, amplitudes=(0.0,))


def spec(**changes: object) -> WorkloadSpec:
    values: dict[str, object] = {
        "id": "demo/one", "max_replicas": 12, "gpus_per_replica": 2, "slo": Slo(2.0, 0.2), "lead_time_s": 12.3,
    }  # fmt: skip
    return WorkloadSpec(**(values | changes))  # type: ignore[arg-type]


def closed_loop(**changes: object) -> ClosedLoop:
    values: dict[str, object] = {"lead_sigma_log": 0.2, "initial_replicas": 3} | changes
    workload = SimulatedWorkload(spec(), BUILT_IN_PROFILES["dense-70b"], GeneratedLoad(SHAPE, 4), **values)  # type: ignore[arg-type]
    return ClosedLoop(workload, 4, START_TS_MS, STEP_S, 0.0, 300.0)


def command(replicas: int, current: int, origin_ts_ms: int, number: int) -> Command:
    target = Target("apps/v1", "Deployment", "default", "one")
    until = origin_ts_ms + 30_000
    return Command(
        f"c{number}", "d", "demo/one", target, replicas, current, 1, number, origin_ts_ms, until, "t", None, 0.01
    )


def scaled_run(slots: int, seed: int = 1) -> tuple[ClosedLoop, list[SlotTelemetry]]:
    """A run in which a random command is obeyed every fifth slot."""
    rng = random.Random(seed)
    loop, out = closed_loop(), []
    for k in range(slots):
        out.append(loop.live_slot(k * STEP_S, (k + 1) * STEP_S))
        if k % 5 == 4:
            origin_ts_ms = START_TS_MS + (k + 1) * 5_000
            loop.obey(command(rng.randint(1, 8), loop.cluster.num_current, origin_ts_ms, k), origin_ts_ms)
    return loop, out


def pages_of(slots: list[SlotTelemetry], source: str) -> list[Page]:
    """The pages that ingest makes of a run."""
    kernel = IngestKernel(0, source, CONFIG, DEFAULT_CATALOGUE, TOPICS)  # type: ignore[arg-type]
    assembler = PageAssembler(CONFIG, 1, DEFAULT_CATALOGUE)
    stamp_ms, offset, pages = START_TS_MS + 10**9, 0, []
    page_offset = 0
    for k, slot in enumerate(slots):
        values = [(b"demo/one", v) for v in (slot.requests if source == "requests" else slot.gpu)]
        values.append((None, encode_tick(START_TS_MS + (k + 1) * 5_000 + 5_000)))  # type: ignore[arg-type]
        records = [LogRecord(offset + i, stamp_ms, key, value) for i, (key, value) in enumerate(values)]
        offset += len(records)
        for emission in kernel.fold(records):
            assert not emission.outputs, "a dead letter"
            for out in emission.commits:
                stored = assembler.feed(LogRecord(page_offset, stamp_ms, out.key, out.value))
                page_offset += 1
                pages += [s.page for s in stored]
    return [p for p in pages if p.workloads]


def test_every_record_decodes_and_nothing_is_unknown() -> None:
    _, slots = scaled_run(40)
    for source in ("requests", "gpu"):
        decoder = RecordDecoder(DEFAULT_CATALOGUE, source, CONFIG.max_record_bytes)  # type: ignore[arg-type]
        kinds = set()
        for k, slot in enumerate(slots):
            values = slot.requests if source == "requests" else slot.gpu
            for value in values:
                decoded = decoder.decode(value, b"demo/one", START_TS_MS + 10**9)
                kinds.add(type(decoded))
                if isinstance(decoded, SampleRecord):
                    low, high = START_TS_MS + k * 5_000, START_TS_MS + (k + 1) * 5_000
                    assert all(low <= s.ts_ms < high for s in decoded.samples)
        assert kinds == ({SampleRecord, FleetRecord, OutcomeRecord} if source == "requests" else {SampleRecord})


def test_num_samples_counts_rows_and_facts() -> None:
    loop = closed_loop()
    slot = loop.live_slot(0.0, STEP_S)
    # Two samples of three replicas and of their six devices, and the fleet facts.
    assert slot.num_samples == 2 * 3 + 2 * 6 + 1


@pytest.mark.parametrize("seed", range(4))
def test_ingest_sees_every_arrival_while_replicas_come_and_go(seed: int) -> None:
    loop, slots = scaled_run(60, seed)
    pages = pages_of(slots, "requests")
    assert len(pages) == 60
    column = pages[0].indicators.index("request.arrival_rate")
    assert not any(f.reset or f.censored for p in pages for f in p.facts)
    rates = np.array([p.values[0, column] for p in pages])
    source = loop.workload.source
    truth = np.array([len(source.between(k * STEP_S, (k + 1) * STEP_S)) for k in range(60)]) / STEP_S
    # The first slot has no counter before it; a slot's last millisecond is counted in the next.
    assert np.all(np.abs(rates[1:] - truth[1:]) <= 0.2 + 1e-4)
    assert rates[1:].sum() == pytest.approx(truth[1:].sum(), rel=1e-3)


def test_ingest_sees_loads_states_and_devices() -> None:
    loop, slots = scaled_run(40)
    pages = pages_of(slots, "requests")
    names = pages[0].indicators
    column = {name: np.array([p.values[0, n] for p in pages]) for n, name in enumerate(names)}
    assert column["request.prompt_token_rate"][1:].sum() * STEP_S == pytest.approx(
        sum(r.engine.prompt_tokens_total for r in loop.cluster.replicas), rel=0.1
    )
    assert 0 < column["engine.kv_cache_usage_ratio"].max() <= 1
    assert column["slo.miss_ratio"].min() >= 0
    assert column["request.ttft_p95_s"].max() > 0
    gpu = pages_of(slots, "gpu")
    assert gpu[0].indicators[:2] == ("gpu.utilization_ratio", "gpu.tensor_active_ratio")
    utilization = np.array([p.values[0, 0] for p in gpu])
    assert 0.1 < utilization[2:].mean() < 1.0
    facts = [p.facts[0].fleet for p in pages]
    assert all(f is not None and f.desired == f.ready + f.pending for f in facts)


def test_outcomes_tell_the_lead_time_of_each_launch() -> None:
    loop = closed_loop(lead_sigma_log=0.0)
    slots = [loop.live_slot(0.0, STEP_S)]
    loop.obey(command(5, 3, START_TS_MS + 5_000, 1), START_TS_MS + 5_000)
    slots += [loop.live_slot(k * STEP_S, (k + 1) * STEP_S) for k in range(1, 6)]
    outcomes = [o for p in pages_of(slots, "requests") for f in p.facts for o in f.outcomes]
    assert [(o.status, o.command_id, o.lead_time_s, o.replicas_ready) for o in outcomes] == [
        ("applied", "c1", None, 3),
        ("ready", "c1", 12.3, 4),
        ("ready", "c1", 12.3, 5),
    ]
    assert [o.ts_ms - START_TS_MS for o in outcomes] == [5_000, 17_300, 17_300]


def test_a_command_that_is_refused_changes_nothing_and_is_reported() -> None:
    loop = closed_loop()
    loop.live_slot(0.0, STEP_S)
    verdict = loop.obey(command(5, 9, START_TS_MS + 5_000, 1), START_TS_MS + 5_000)
    assert (verdict.accepted, loop.cluster.num_current) == (False, 3)
    late = loop.obey(command(5, 3, START_TS_MS - 60_000, 2), START_TS_MS + 5_000)
    assert (late.reason, loop.cluster.num_current) == ("expired", 3)
    slot = loop.live_slot(STEP_S, 2 * STEP_S)
    assert sum(b'"refused"' in value for value in slot.requests) == 1
    assert sum(b'"expired"' in value for value in slot.requests) == 1


def test_a_run_repeats_byte_by_byte() -> None:
    assert scaled_run(25)[1] == scaled_run(25)[1]


def test_large_fleets_are_cut_into_records_that_fit() -> None:
    cluster = Cluster(BUILT_IN_PROFILES["dense-70b"], 300, ConstantLeadTime(1.0), Objective(1.0, 1.0))
    sampler = TelemetrySampler("w", cluster, DeviceModel(), 0, START_TS_MS, STEP_S)
    for at_s in (2.5, 4.999):
        cluster.advance(at_s)
        sampler.sample()
    slot = sampler.take(300)
    assert slot.num_samples == 300 * 2 * 3 + 1
    assert max(len(v) for v in slot.requests + slot.gpu) < CONFIG.max_record_bytes
    assert len(slot.requests) > 2


def test_a_gateway_tells_what_waits_while_there_is_no_replica() -> None:
    cluster = Cluster(BUILT_IN_PROFILES["dense-70b"], 0, ConstantLeadTime(1.0), Objective(1.0, 1.0))
    cluster.feed(GeneratedLoad(SHAPE, 1).between(0.0, STEP_S))
    sampler = TelemetrySampler("w", cluster, DeviceModel(), 0, START_TS_MS, STEP_S, with_gateway=True)
    cluster.advance(4.999)
    sampler.sample()
    slot = sampler.take(0)
    gateway = decode(slot.requests[0], b"w", "requests")
    assert isinstance(gateway, SampleRecord)
    (sample,) = gateway.samples
    assert sample.source == "w-gateway"
    assert sample.values["num_requests_waiting"] == len(cluster.gateway) > 0
    assert sample.values["requests_started_total"] == 0.0
    assert (slot.num_samples, len(slot.requests)) == (2, 2)


def test_static_shadow_and_live_copy_see_the_same_arrivals() -> None:
    loop = closed_loop()
    for k in range(20):
        loop.live_slot(k * STEP_S, (k + 1) * STEP_S)
    loop.settle(100.0)
    counts = {loop.cluster.scores.num_arrived, *(s.cluster.scores.num_arrived for s in loop.shadows)}
    assert counts == {len(loop.workload.source.between(0.0, 100.0))}
    own = loop.score(100.0, final=True)
    assert own.gpu_hours == pytest.approx(3 * 2 * 100 / 3600)
    assert own.attainment is not None


def test_lead_times_are_the_same_for_every_copy() -> None:
    loop = closed_loop()
    clusters = [loop.cluster, *(s.cluster for s in loop.shadows)]
    for cluster in clusters:
        cluster.advance(1.0)
        cluster.set_replicas(cluster.num_current + 3, 1.0)
    leads = [[r.lead_s for r in c.warming()] for c in clusters]
    expected = LognormalLeadTime(12.3, 0.2, 4)
    assert leads == [[expected.next_s() for _ in range(3)]] * 3


def test_a_finite_trace_ends_the_known_future() -> None:
    source = GeneratedLoad(SHAPE, 1).between(0.0, 60.0)
    workload = SimulatedWorkload(spec(), BUILT_IN_PROFILES["dense-70b"], Trace("t", source))
    loop = ClosedLoop(workload, 0, START_TS_MS, STEP_S, 0.0, math.inf)
    assert 1 <= loop.initial_replicas <= loop.peak_replicas <= 12


MODEL = DeviceModel()


def settled(busy: float, prefill: float) -> tuple[float, float, float]:
    device = Device(MODEL, 0, 0, 0)
    readings = [device.read(k * 2.5, busy, prefill, 0.5, 1.0) for k in range(400)][200:]
    return tuple(
        float(np.mean([getattr(r, n) for r in readings])) for n in ("sm_active_ratio", "power_w", "temperature_c")
    )  # type: ignore[return-value]


def test_devices_heat_up_with_work_and_with_delay() -> None:
    idle, decode, prefill = settled(0.0, 0.0), settled(0.9, 0.0), settled(0.9, 0.9)
    assert idle[0] == 0.0
    assert idle[1] == pytest.approx(MODEL.idle_w, abs=3)
    assert idle < decode < prefill
    assert MODEL.idle_c - 1 < idle[2] < decode[2] < prefill[2] < MODEL.peak_c + 1
    device = Device(MODEL, 0, 0, 0)
    device.read(0.0, 0.0, 0.0, 0.0, 1.0)
    first = device.read(2.5, 1.0, 1.0, 1.0, 1.0)
    later = device.read(600.0, 1.0, 1.0, 1.0, 1.0)
    assert first.power_w == pytest.approx(later.power_w, rel=0.1)
    assert first.temperature_c < 40 < 65 < later.temperature_c


def test_device_readings_stay_in_their_ranges_and_memory_fills_while_loading() -> None:
    device = Device(MODEL, 1, 2, 3)
    rng = random.Random(0)
    for k in range(500):
        busy = rng.random()
        r = device.read(k * 2.5, busy, busy * rng.random(), rng.random(), 1.0)
        assert 0 <= r.sm_active_ratio <= 1
        assert 0 <= r.tensor_active_ratio <= 1
        assert 0 < r.memory_used_bytes <= r.memory_total_bytes
        assert r.power_w > 0
    loading = [
        Device(MODEL, 1, 2, 3).read(0.0, 0.0, 0.0, 0.0, ratio).memory_used_bytes for ratio in (0.1, 0.5, 0.9, 1.0)
    ]
    assert loading == sorted(loading)
