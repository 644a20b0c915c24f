"""Records that the forecast and decide stages publish. Field names are the public contract (docs/formats)."""

from __future__ import annotations

from typing import Annotated, Final, Generic, TypeVar

import msgspec

from model.calibration.trust import Outlook
from streams.records.facts import Control, FleetFacts
from streams.records.limits import MAX_REPLICAS

P = TypeVar("P")


class LevelRisk(msgspec.Struct, frozen=True, gc=False):
    """One replica count of a plan: its risk over [lead, lead + commit], the risk's standard error, and its cost.

    `miss_share` is the share of that time's requests that is expected to miss.
    """

    replicas: int
    p_miss: float
    p_miss_stderr: float
    cost_gpu_hours: float
    miss_share: float = 0.0


class Trial(msgspec.Struct, frozen=True):
    """Fewer replicas than the allowed risk asks for, in force or to be, to learn whether they carry the load.

    Their risk is that of a replica which carries no less than is hoped for: `doubt_ratio` of the capacities believed
    possible, from the least on, are left out. All are counted in what is stated of the same count elsewhere.
    """

    replicas: int
    p_miss: float
    p_miss_stderr: float
    miss_share: float
    doubt_ratio: float


class SurgeAhead(msgspec.Struct, frozen=True):
    """A surge that has kept a period and is expected again within the forecast's horizon, or is under way (`begun`).

    `chance` is that it comes, `arrival_rate` what it adds to the requests of now; it came `seen` times of `due`.
    """

    start_ts_ms: int
    begun: bool
    chance: float
    period_s: float
    length_s: float
    arrival_rate: float
    seen: int
    due: int


class JumpsAhead(msgspec.Struct, frozen=True):
    """Jumps that no forecast has in it, of which some of the paths have one: as often as they came of late.

    `arrival_rate` is what the median of those on the paths adds to the requests of now; `seen` are remembered.
    """

    per_hour: float
    arrival_rate: float
    seen: int


class Quantiles(msgspec.Struct, frozen=True, gc=False):
    """Quantiles of one scalar; `levels` ascending, `values` aligned."""

    levels: tuple[float, ...]
    values: tuple[float, ...]


class PromiseCapacity(msgspec.Struct, frozen=True, gc=False):
    """What one replica carries within one promise of the SLO, `ttft` or `tpot`: estimated from percentiles.

    `miss_share` of the requests are expected to miss it where the proposed count meets the median of the forecast's
    peak.
    """

    promise: str
    capacity: Quantiles
    miss_share: float


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A bound that holds beside the declared ones: the guard that keeps it, and why it is there."""

    guard: str
    low: int | None
    high: int | None
    reason: str


class ClassRisk(msgspec.Struct, frozen=True, gc=False):
    """What one SLO class asks for: replicas, and its risk with them against the one allowed to it.

    `name` joins those of several classes by `+` where telemetry does not tell them apart.
    """

    name: str
    objective: float
    epsilon: float
    replicas: int | None
    p_miss: float | None
    budget_left_ratio: float


class InputFacts(msgspec.Struct, frozen=True):
    """What the guards must know of the telemetry behind a plan.

    Attributes:
        arrival_rate: of the last slot, 1/s; None when not observed.
        observed_ratio: share of the context's steps in which what the workload is planned by was observed.
        observed_steps: steps with an observed arrival rate in the context.
        oldest_age_ms: origin minus the oldest of the known sources' newest sample times.
        coverage_ratio: sources heard in the last slot / sources due, of requests or of GPUs, whichever is less.
        censored: the arrival rate is known from completions only.
        flat: the arrival rate has not moved for a suspicious time.
        cliff: it fell by more than the policy's cliff ratio within one step.
        zero_after_nonzero: it is exactly zero and was not.
        offsets: per telemetry source, the offset at which the slot closed.
    """

    arrival_rate: float | None
    observed_ratio: float
    observed_steps: int
    oldest_age_ms: int | None
    coverage_ratio: float
    censored: bool
    flat: bool
    cliff: bool
    zero_after_nonzero: bool
    offsets: dict[str, int]


class WorkloadPlan(msgspec.Struct, frozen=True):
    """What the forecast stage says of one workload at one origin.

    `refused` names why there is no plan (silent, warming_up, forecast, no_fleet_facts, retired): decide holds then.
    `epsilon` is the risk that the plan was allowed and `bearable_share` the share of requests that it may expect to
    miss, None where it made none; both follow `budget_left_ratio`.
    """

    workload: str
    refused: str | None
    inputs: InputFacts
    fleet: FleetFacts | None = None
    facts_age_ms: int | None = None
    reactive_replicas: int | None = None
    proposed: int | None = None
    proposer: str | None = None
    risks: tuple[LevelRisk, ...] = ()
    forecast_source: str | None = None
    peak: Quantiles | None = None
    window_s: float | None = None
    capacity: Quantiles | None = None
    lead_time_s: Quantiles | None = None
    slo_miss_ratio: float | None = None
    epsilon: float | None = None
    bearable_share: float | None = None
    budget_left_ratio: float | None = None
    standing: tuple[Limit, ...] = ()
    p_needed: float | None = None
    slo_class: str | None = None
    classes: tuple[ClassRisk, ...] = ()
    class_risks: tuple[tuple[LevelRisk, ...], ...] = ()  # of each of `classes`, what `risks` are of the one that binds
    indicator: str | None = None  # that load is counted in; None = what the workload's role says
    outlook: Outlook | None = None  # what the forecast is held to when its slot is observed
    power_w: float | None = None  # measured draw of one replica
    trial: Trial | None = None
    proposals: dict[str, int] = {}  # replicas by proposer, within bounds
    surge: SurgeAhead | None = None  # the first to come again
    jumps: JumpsAhead | None = None
    promises: tuple[PromiseCapacity, ...] = ()  # those known to have been missed, the one that gives way first first


class PlanOf(msgspec.Struct, Generic[P], frozen=True):
    """One record of the `plans` log: everything one pages partition says at one origin, its plans as P."""

    partition: int
    slot: int
    origin_ts_ms: int
    step_ms: int
    model_fingerprint: str
    policy_fingerprint: str
    workloads: tuple[P, ...]
    controls: tuple[Control, ...] = ()
    end_stamp_ms: int = 0
    v: int = 1


PlanRecord = PlanOf[WorkloadPlan]


class ForecastRecord(msgspec.Struct, frozen=True):
    """Public: quantile forecast of the target indicators of one workload (topic `forecasts`)."""

    forecast_id: str
    workload: str
    origin_ts_ms: int
    step_ms: int
    source: str
    model: str
    quantile_levels: tuple[float, ...]
    targets: dict[str, tuple[tuple[float, ...], ...]]
    peaks: dict[str, tuple[float, ...]]
    peak_window_s: float
    v: int = 1


class GuardStep(msgspec.Struct, frozen=True):
    """One guard that spoke: the replica count before and after it, and why."""

    guard: str
    before: int
    after: int
    reason: str


class ReplicaView(msgspec.Struct, frozen=True):
    ready: int | None
    pending: int | None
    current: int | None
    proposed: int | None
    final: int | None


class RiskView(msgspec.Struct, frozen=True):
    """`p_miss` maps a replica count (as text) to its probability; `p_miss_stderr` belongs to the final count.

    `miss_share` maps it to the share of requests expected to miss, of which `bearable_share` was allowed. `trial` is of
    the proposed count where that is tried. `promises` are as those of a plan.

    Epsilon, objective and risks are those of the SLO class `slo_class`, which asked for most, where there are several.
    """

    epsilon: float
    objective: float
    p_miss: dict[str, float]
    p_miss_stderr: float | None
    budget_left_ratio: float | None = None
    p_needed: float | None = None
    slo_class: str | None = None
    classes: tuple[ClassRisk, ...] = ()
    miss_share: dict[str, float] = {}
    bearable_share: float | None = None
    trial: Trial | None = None
    promises: tuple[PromiseCapacity, ...] = ()


class ForecastView(msgspec.Struct, frozen=True):
    model: str
    source: str | None
    indicator: str
    unit: str
    window_s: float | None
    peak: Quantiles | None
    surge: SurgeAhead | None = None
    jumps: JumpsAhead | None = None


class Fingerprint(msgspec.Struct, frozen=True):
    policy: str
    model: str


class Decision(msgspec.Struct, frozen=True):
    """Public: one decision of one workload at one origin, "hold" included (topic `decisions`).

    `action`: up | down | hold | retired. `reason` is the name of the guard or proposer that had the last word.
    """

    decision_id: str
    workload: str
    origin_ts_ms: int
    mode: str
    action: str
    reason: str
    replicas: ReplicaView
    risk: RiskView
    forecast: ForecastView
    capacity_per_replica: Quantiles | None
    lead_time_s: Quantiles | None
    proposer: str | None
    guards: tuple[GuardStep, ...]
    shadow: dict[str, int]
    inputs: InputFacts
    fingerprint: Fingerprint
    command_id: str | None
    v: int = 1


class Target(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    namespace: str
    name: str


class Command(msgspec.Struct, frozen=True):
    """Public: the lease in force for one workload (topic `commands`). Safe to obey late, twice or out of order."""

    command_id: str
    decision_id: str
    workload: str
    target: Target
    replicas: int
    expected_current: int
    epoch: int
    sequence: int
    issued_ts_ms: int
    valid_until_ts_ms: int
    reason: str
    p_miss: float | None
    epsilon: float
    v: int = 1


class Pin(msgspec.Struct, frozen=True):
    """Break glass: an operator holds a workload at `replicas` until `until_ts_ms` (None = until unpinned)."""

    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)]
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""


LEVELS: Final = (0.05, 0.1, 0.5, 0.9, 0.95)
