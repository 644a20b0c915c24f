"""One value of each thing that HARMONY publishes, with everything in it that may be there."""

from __future__ import annotations

import numpy as np

from agents.decide.state import DecideCommit, DecideState, LastCommand, OperatorOverride, PartitionMark, WorkloadHistory
from agents.forecast.commit import CommitBody, snapshot_state
from agents.policy import Policy, Slo, SloClass, TargetRef, WorkloadSpec
from agents.records import (
    ClassRisk,
    Command,
    Decision,
    Fingerprint,
    ForecastRecord,
    ForecastView,
    GuardStep,
    InputFacts,
    LevelRisk,
    Limit,
    Pin,
    PlanRecord,
    Quantiles,
    ReplicaView,
    RiskView,
    Target,
    WorkloadPlan,
)
from agents.workload.state import new_state
from model.calibration.trust import PendingForecast
from model.capacity.evidence import SlotEvidence
from streams.config import StreamConfig
from streams.pages.page import Counters, Page, SeriesState, WorkloadFacts
from streams.records.facts import (
    BatchJob,
    BatchQueue,
    ClassCounts,
    Control,
    FleetFacts,
    HistogramState,
    OutcomeFact,
    SloCounts,
)
from streams.windows.coarse import CoarseRow, RunningCoarse

WORKLOAD = "prod/llm/chat-70b"
TS_MS = 1_763_636_415_000
STREAM = StreamConfig(step_ms=5_000, grace_ms=5_000, skew_ms=1_000, context_steps=8)
SLOT = TS_MS // STREAM.step_ms
CLASSES = (SloClass("bulk", 20.0, 1.0, 0.9), SloClass("chat", 1.0, 0.1, 0.99, epsilon=0.005))
POLICY = Policy(
    fleet="golden",
    epoch=2,
    workloads=(
        WorkloadSpec(
            WORKLOAD,
            TargetRef(name="chat-70b", namespace="llm"),
            max_replicas=12,
            slo=Slo(1.0, 0.1, 0.99, CLASSES),
            mode="act",
            capacity_rps=2.0,
        ),
    ),
)
FLEET = FleetFacts(TS_MS - 400, ready=6, pending=1, draining=0, desired=7)
CLASS_RISKS = (
    ClassRisk(name="bulk", objective=0.9, epsilon=0.01, replicas=5, p_miss=0.0004, budget_left_ratio=0.75),
    ClassRisk(name="chat", objective=0.99, epsilon=0.005, replicas=None, p_miss=None, budget_left_ratio=1.0),
)
PIN = Control("c-1", TS_MS - 700, "pin", WORKLOAD, replicas=3, until_ts_ms=TS_MS + 60_000, by="me", reason="a test")
INPUTS = InputFacts(
    arrival_rate=139.25,
    observed_ratio=0.98,
    observed_steps=126,
    oldest_age_ms=4_200,
    coverage_ratio=1.0,
    censored=False,
    flat=True,
    cliff=False,
    zero_after_nonzero=True,
    offsets={"gpu": 90_127, "requests": 88_213},
)
PEAK = Quantiles((0.05, 0.5, 0.95), (137.4, 148.8, 166.3))
CAPACITY = Quantiles((0.05, 0.5, 0.95), (15.2, 16.4, 17.5))
LEAD = Quantiles((0.05, 0.5, 0.95), (61.0, 74.0, 92.0))

FORECAST = ForecastRecord(
    forecast_id="f" * 24,
    workload=WORKLOAD,
    origin_ts_ms=TS_MS,
    step_ms=5_000,
    source="pool",
    model="6f0d3b7a19c2e845",
    quantile_levels=(0.1, 0.5, 0.9),
    targets={"request.arrival_rate": ((1.0, 2.5, 3.0), (1.5, 2.75, 3.5))},
    peaks={"request.arrival_rate": (1.5, 2.75, 3.5)},
    peak_window_s=10.0,
)
DECISION = Decision(
    decision_id="a3d1f0927bc84e55d0e6c1f2",
    workload=WORKLOAD,
    origin_ts_ms=TS_MS,
    mode="act",
    action="up",
    reason="step_limit",
    replicas=ReplicaView(ready=6, pending=0, current=6, proposed=11, final=10),
    risk=RiskView(
        epsilon=0.01,
        objective=0.99,
        p_miss={"10": 0.0117, "11": 0.0061},
        p_miss_stderr=0.0017,
        budget_left_ratio=0.75,
        p_needed=0.25,
        slo_class="chat",
        classes=CLASS_RISKS,
    ),
    forecast=ForecastView("6f0d3b7a19c2e845", "ridge", "request.arrival_rate", "1/s", 150.0, PEAK),
    capacity_per_replica=CAPACITY,
    lead_time_s=LEAD,
    proposer="cheapest",
    guards=(GuardStep("step_limit", 11, 10, "at most +100% or +4 per 60 s"),),
    shadow={"reactive": 9},
    inputs=INPUTS,
    fingerprint=Fingerprint("1c9a4be2f7d05836", "6f0d3b7a19c2e845"),
    command_id="5b0c8f0d6d2f4a6f9c3e1a77",
)
COMMAND = Command(
    command_id="5b0c8f0d6d2f4a6f9c3e1a77",
    decision_id="a3d1f0927bc84e55d0e6c1f2",
    workload=WORKLOAD,
    target=Target("apps/v1", "Deployment", "llm", "chat-70b"),
    replicas=10,
    expected_current=6,
    epoch=1,
    sequence=TS_MS // 5_000,
    issued_ts_ms=TS_MS,
    valid_until_ts_ms=TS_MS + 60_000,
    reason="step_limit",
    p_miss=0.0117,
    epsilon=0.01,
)
PLAN = PlanRecord(
    partition=1,
    slot=SLOT - 1,
    origin_ts_ms=TS_MS,
    step_ms=5_000,
    model_fingerprint="6f0d3b7a19c2e845",
    policy_fingerprint="1c9a4be2f7d05836",
    workloads=(
        WorkloadPlan(
            WORKLOAD,
            None,
            INPUTS,
            fleet=FLEET,
            facts_age_ms=400,
            reactive_replicas=9,
            proposed=11,
            proposer="cheapest",
            risks=(
                LevelRisk(replicas=10, p_miss=0.0117, p_miss_stderr=0.0017, cost_gpu_hours=0.5),
                LevelRisk(replicas=11, p_miss=0.0061, p_miss_stderr=0.001, cost_gpu_hours=0.55),
            ),
            forecast_source="ridge",
            peak=PEAK,
            window_s=150.0,
            capacity=CAPACITY,
            lead_time_s=LEAD,
            slo_miss_ratio=0.004,
            epsilon=0.01,
            budget_left_ratio=0.75,
            standing=(Limit("schedule", 4, None, "office asks for at least 4"),),
            p_needed=0.25,
            slo_class="chat",
            classes=CLASS_RISKS,
            outlook=PendingForecast(SLOT + 3, 1.0, 2.0, 3.0, 2.5),
        ),
        WorkloadPlan("prod/llm/gone", "retired", INPUTS),
    ),
    controls=(PIN,),
    end_stamp_ms=TS_MS + 5_250,
)
DECIDED = DecideCommit(
    resume_offset=4_711,
    policy_fingerprint="1c9a4be2f7d05836",
    fleet="golden",
    epoch=2,
    step_ms=5_000,
    state=DecideState(
        workloads={
            WORKLOAD: WorkloadHistory(
                TS_MS, 1, 6, 10, 16, LastCommand("c", "d", 10, 2, 7, TS_MS, TS_MS + 25_000, TS_MS - 5_000, 6),
                ((TS_MS, 11),), ((TS_MS - 5_000, 9), (TS_MS, 11)), ((TS_MS - 5_000, 4),),
            )
        },
        operator={WORKLOAD: OperatorOverride("observe", Pin(3, TS_MS + 60_000, "me", "a test"), paused=True)},
        paused=True,
        control_ids=("c-0", "c-1"),
        removals=((TS_MS - 5_000, 2),),
        partitions={"1": PartitionMark(SLOT - 1, TS_MS)},
        clock_ms=TS_MS,
    ),
)  # fmt: skip
COARSE = CoarseRow(
    TS_MS // 600_000,
    (WORKLOAD, "prod/llm/other"),
    ("request.arrival_rate", "request.prompt_token_rate"),
    np.array([[139.25, 0.0], [2.5, 1e6]], np.float32),
    np.array([[True, False], [True, True]]),
)


def pages() -> list[Page]:
    """A page of each source, the second of its chain with all that one may hold."""
    told = WorkloadFacts(
        3, TS_MS - 100, 2, 3, censored=True, reset=True, fleet=FLEET,
        outcomes=(OutcomeFact(TS_MS - 300, "c", "ready", 3, 61.5),),
        batch=(BatchQueue("nightly", TS_MS - 200, (BatchJob(TS_MS + 60_000, 3e6),)),),
        slo=(SloCounts("gateway", TS_MS - 100, (ClassCounts("bulk", 1.0, 2.0), ClassCounts("chat", 3.0, 4.0))),),
    )  # fmt: skip
    hist = HistogramState((0.5, 1.0), (40_112.0, 46_020.0), 48_170.0, 19_877.25)
    series = (
        SeriesState(WORKLOAD, "vllm/0", TS_MS - 100, {"slo_total": 48_211.0}, {"ttft_s": hist}, {"ttft_s": 5}),
        SeriesState(WORKLOAD, "vllm/1", TS_MS - 200, {"prompt_tokens_total": 9.5}),
    )  # fmt: skip
    requests = Page(
        "requests", 1, SLOT - 1, SLOT - 2, "ab" * 16, 88_213, TS_MS + 5_250, 88_100, 5_000, 5_000,
        ("request.arrival_rate", "engine.running"), (WORKLOAD, "prod/llm/other"),
        np.array([[139.25, 41.5], [0.0, 0.0]], np.float32), np.array([[True, True], [False, False]]),
        (told, WorkloadFacts(1, TS_MS - 900, 1, 1)), series, (PIN,), Counters(9, 8, 7, 6, 5, 4, 3, 2, 1),
    )  # fmt: skip
    gpu = Page(
        "gpu", 1, SLOT - 1, None, None, 90_127, TS_MS + 5_260, 90_100, 5_000, 5_000,
        ("gpu.power_w",), (), np.zeros((0, 1), np.float32), np.zeros((0, 1), np.bool_), (),
    )  # fmt: skip
    return [requests, gpu]


def learned() -> CommitBody:
    """A body whose numbers were learned in a short life: the first one; later ones are read from what is stored."""
    state = new_state(WORKLOAD, POLICY, SLOT - 40)
    for slot in range(SLOT - 40, SLOT):
        end_ts_ms, load = STREAM.slot_end_ms(slot), 9.0 + slot % 7
        state.lead.update(40.0 + slot % 11)
        state.budget.observe(end_ts_ms, 5 * load, 0.01 * (slot % 3), 0.99, 0.6)
        state.trust.observe(slot, load)
        state.trust.expect(PendingForecast(slot + 4, load - 2, load, load + 2, load, "pool"))
        evidence = SlotEvidence(end_ts_ms, 5.0, load, 0.01 * (slot % 3), 0.0, 6, 0, 0, 1.0, 0.99, residence_s=2.0)
        state.capacity.observe(evidence)
        counts = (ClassCounts("bulk", 40.0 * (slot - SLOT + 41), 44.0 * (slot - SLOT + 41)),)
        state.classes.learn(state.spec, (SloCounts("gateway", end_ts_ms - 100, counts),), evidence)
    state.calibration.offer(TS_MS + 60_000, TS_MS + 120_000, [(6, 0.25), (7, 0.01)])
    state.last_proposed, state.idle_since_ms, state.event_loads = 7, TS_MS - 5_000, {"launch": 8.5}
    return CommitBody(
        slot=SLOT - 1,
        resume_offset=240,
        pages_from=200,
        step_ms=5_000,
        grace_ms=5_000,
        policy="1c9a4be2f7d05836",
        model="6f0d3b7a19c2e845",
        states={WORKLOAD: snapshot_state(state)},
        running_coarse=RunningCoarse(("request.arrival_rate",), {WORKLOAD: ([44.5], [4])}),
        context_steps=8,
    )
