"""The default fleet of `harmony run`: three generated services of different character, and a trace as a workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.policy import GuardLimits, Policy, Slo, TargetRef, WorkloadSpec
from infra.console.errors import HarmonyError
from infra.console.options import say
from infra.settings.load import file_content
from infra.simulator.arrivals import Arrivals, ArrivalSource, GeneratedLoad, LoadShape, TokenShape, Trace
from infra.simulator.closed_loop import SimulatedWorkload
from infra.simulator.ledger import Objective
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile
from infra.simulator.sizing import benchmark_rps
from infra.simulator.traces import read_trace, remark
from streams.config import StreamConfig
from streams.topics import Topics

STEP_MS = 5_000
# A "day" of the generated load, so that a run of a few minutes at speed 20 shows a whole cycle.
DAY_S = 3_600.0
# The lengths of a trace's first requests are those of its load test.
_TESTED_S = 1_800.0
DEMO_STREAM = StreamConfig(step_ms=STEP_MS, grace_ms=5_000, skew_ms=2_000, context_steps=128)


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A simulated fleet.

    Attributes:
        start_ts_ms: event time of second 0, aligned to the step; None = 30 days before the run.
        trace: name of the trace that ends the run; None for endless load.
        length_s: when the run ends, the warm-up included; None: with its load.
    """

    workloads: tuple[SimulatedWorkload, ...]
    seed: int = 0
    start_ts_ms: int | None = None
    trace: str | None = None
    length_s: float | None = None

    @property
    def end_s(self) -> float:
        """When the run or the first finite source ends; infinity without one."""
        if self.length_s is not None:
            return self.length_s
        return min((w.source.end_s for w in self.workloads), default=math.inf)

    def specs(self) -> tuple[WorkloadSpec, ...]:
        """The policy's declarations of these workloads."""
        return tuple(w.spec for w in self.workloads)


@dataclass(frozen=True, slots=True)
class Delayed:
    """A source that starts `delay_s` later."""

    source: ArrivalSource
    delay_s: float

    @property
    def end_s(self) -> float:
        return self.source.end_s + self.delay_s

    @property
    def start_ts_ms(self) -> int | None:
        start = self.source.start_ts_ms
        return None if start is None else start - round(self.delay_s * 1000)

    def between(self, start_s: float, end_s: float) -> Arrivals:
        a = self.source.between(max(0.0, start_s - self.delay_s), max(0.0, end_s - self.delay_s))
        return replace(a, arrival_s=a.arrival_s + self.delay_s)


def demo_workloads(seed: int = 0, *, day_s: float = DAY_S, from_night: bool = False) -> tuple[SimulatedWorkload, ...]:
    """Three services: a chat with a daily curve and flash crowds, a code assistant, a summariser with batch jobs.

    Args:
        day_s: length of a day of theirs.
        from_night: second 0 is night for those with a daily curve, so that a day ends where it began.
    """
    night = 0.25 if from_night else 0.0  # a sine is least a quarter of its period before its phase

    def phases(*of_day: float) -> tuple[float, ...]:
        return tuple(night if from_night else phase for phase in of_day)

    chat = LoadShape(
        mean_rps=7.0,
        prompt=TokenShape(850, 0.8, 5_000),
        output=TokenShape(210, 0.7, 2_000),
        period_s=day_s,
        amplitudes=(0.55, 0.12),
        phases=phases(0.30, 0.10),
        bursts_per_hour=1.5,
        burst_factor=1.6,
        burst_s=150,
        drift_per_hour=0.02,
        prompt_drift=0.15,
    )
    code = LoadShape(
        mean_rps=8.0,
        prompt=TokenShape(1_700, 0.7, 7_000),
        output=TokenShape(55, 0.8, 800),
        period_s=day_s,
        amplitudes=(0.6, 0.25),
        phases=phases(0.25, 0.45),
        noise=0.12,
    )
    summaries = LoadShape(
        mean_rps=4.0,
        prompt=TokenShape(3_200, 0.5, 12_000),
        output=TokenShape(260, 0.4, 1_500),
        period_s=day_s,
        amplitudes=(0.2,),
        phases=phases(0.6),
        batch_every_s=day_s / 3,
        batch_factor=2.2,
        batch_s=240,
    )
    return (
        declared_workload(
            "demo/chat-70b",
            "dense-70b",
            GeneratedLoad(chat, seed),
            Slo(2.0, 0.2, 0.99),
            most=20,
            lead_s=55,
            price=3.0,
            rps=1.66,
        ),
        declared_workload(
            "demo/code-13b",
            "dense-13b",
            GeneratedLoad(code, seed + 1),
            Slo(2.5, 0.2, 0.99),
            most=20,
            lead_s=45,
            price=2.0,
            rps=1.95,
        ),
        declared_workload(
            "demo/summaries-30b",
            "moe-30b",
            GeneratedLoad(summaries, seed + 2),
            Slo(5.0, 0.15, 0.99),
            most=12,
            lead_s=50,
            price=2.0,
            rps=2.37,
        ),
    )


def declared_workload(
    name: str,
    profile: str,
    source: ArrivalSource,
    slo: Slo,
    *,
    most: int,
    lead_s: float,
    price: float,
    rps: float,
) -> SimulatedWorkload:
    """A service. `rps` is what a load test says that one replica carries, as its operator would have declared it."""
    p = BUILT_IN_PROFILES[profile]
    spec = WorkloadSpec(
        id=name,
        target=TargetRef(name=name.rsplit("/", 1)[-1]),
        min_replicas=1,
        max_replicas=most,
        gpus_per_replica=p.gpus_per_replica,
        price_per_gpu_hour=price,
        slo=slo,
        mode="act",
        capacity_rps=rps,
        lead_time_s=lead_s,
    )
    return SimulatedWorkload(spec, p, source, lead_sigma_log=0.12)


def trace_workload(trace: Trace, profile: EngineProfile | None = None, slo: Slo | None = None) -> SimulatedWorkload:
    """A whole trace as one workload `trace/<file stem>`; bounds follow from its busiest minute."""
    p = profile or BUILT_IN_PROFILES["dense-70b"]
    slo = slo or Slo(2.0, 0.2, 0.99)
    a = trace.arrivals
    busiest = int(np.bincount((a.arrival_s // 60).astype(np.int64)).max()) / 60
    rate = p.steady_rate(float(a.prompt_tokens.mean()), float(a.output_tokens.mean()), slo.tpot_s)
    tested = benchmark_rps(p, a.between(0.0, _TESTED_S), Objective(slo.ttft_s, slo.tpot_s), slo.objective, 0)
    spec = WorkloadSpec(
        id=f"trace/{trace.name}",
        target=TargetRef(name=trace.name.lower().replace("_", "-")),
        min_replicas=1,
        max_replicas=max(4, 2 * math.ceil(busiest / rate) + 2),
        gpus_per_replica=p.gpus_per_replica,
        price_per_gpu_hour=3.0,
        slo=slo,
        mode="act",
        capacity_rps=tested,
        lead_time_s=50.0,
    )
    return SimulatedWorkload(spec, p, trace, lead_sigma_log=0.12)


def demo_fleet(
    trace: str | Path | None = None, *, with_generated: bool = True, seed: int = 0, step_ms: int = STEP_MS
) -> FleetSpec:
    """The fleet of `harmony run [--trace FILE]`.

    Args:
        with_generated: keep the generated services beside a trace.

    Raises:
        TraceError: the trace cannot be used.
    """
    generated = demo_workloads(seed)
    if trace is None:
        return FleetSpec(generated, seed)
    read = read_trace(trace)
    passed_over = remark(read)
    if passed_over is not None:
        say(passed_over)
    recorded = trace_workload(read)
    start_ts_ms = recorded.source.start_ts_ms
    if start_ts_ms is not None:
        aligned_ms = start_ts_ms - start_ts_ms % step_ms
        recorded = replace(recorded, source=Delayed(recorded.source, (start_ts_ms - aligned_ms) / 1000))
        start_ts_ms = aligned_ms
    others = generated if with_generated else ()
    return FleetSpec((recorded, *others), seed, start_ts_ms, recorded.spec.id)


def demo_policy(fleet: FleetSpec, stream: StreamConfig = DEMO_STREAM) -> Policy:
    """The demo's policy: every workload may act once the context is full."""
    return Policy(fleet="demo", workloads=fleet.specs(), guards=GuardLimits(warm_up_steps=stream.context_steps))


# The demo's own `harmony.yaml`: what `harmony run` gives its workers, and what a user can read and copy.


_HEADER = "# Written by `harmony run` for its workers; `harmony init` writes a commented one to start from.\n"


def settings_of(policy: Policy, stream: StreamConfig, topics: Topics) -> dict[str, Any]:
    """The mapping of a `harmony.yaml` that loads back as this policy, stream configuration and topics."""
    content = file_content(policy, stream, topics)
    # A lockstep run waits for every slot, so a wait for a fuller batch only costs time.
    content["advanced"]["worker"] = {"batch_deadline_ms": 5}
    return content


def write_settings(
    path: Path,
    policy: Policy,
    stream: StreamConfig,
    topics: Topics,
    process: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write them where workers, and nobody else, can read them; `process` are sections of `advanced` to add.

    Raises:
        HarmonyError: the file cannot be written.
    """
    settings = settings_of(policy, stream, topics)
    for name, keys in (process or {}).items():
        settings["advanced"][name] = {**settings["advanced"].get(name, {}), **keys}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(_HEADER + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise HarmonyError(
            f"Cannot write {path}: {error.strerror}. Choose another directory with HARMONY_STATE_DIR."
        ) from error
