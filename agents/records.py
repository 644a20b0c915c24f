"""Records that the forecast and decide stages publish; field names are the public contract.

The words, units and limits at the fields make the JSON Schemas and the tables of docs/formats (`infra.schemas`). The
limits are stated to readers and not checked here: `extra_json_schema` decodes whatever its type allows.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from model.calibration.trust import PendingForecast
from streams.records.facts import Control, FleetFacts
from streams.records.limits import MAX_REPLICAS

P = TypeVar("P")

LEVELS: Final = (0.05, 0.1, 0.5, 0.9, 0.95)  # Quantile levels (1) of the scalars that plans and decisions state.
# Intervals whose coverage is scored live: nominal coverage -> the two quantile levels.
BANDS: Final = {"0.5": (0.25, 0.75), "0.8": (0.1, 0.9), "0.9": (0.05, 0.95)}


def _field(text: str, *, unit: str = "", **limits: Any) -> msgspec.Meta:
    """Meaning of one field: its words, its unit ("" = none), and further JSON Schema keywords for its value."""
    named_elsewhere = "'s" in unit  # "the indicator's": another field or the context names the unit
    description = text if not unit or named_elsewhere else f"{text} Unit: {unit}."
    return msgspec.Meta(description=description, extra={"unit": unit, "text": text}, extra_json_schema=limits or None)


NonNegativeInt = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})]
NonNegativeFloat = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0})]
Ratio = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
Identifier = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})]
WorkloadId = Annotated[str, _field("What is scaled; also the record's key.", minLength=1, maxLength=128)]
OriginMs = Annotated[
    NonNegativeInt,
    _field("End of the last closed slot: the instant at which the record speaks, in event time.", unit="ms"),
]
AcceptedRisk = Annotated[Ratio, _field("Accepted probability that replicas fall behind.", unit="1")]
FormatVersion = Annotated[int, _field("Version of the format; readers ignore fields they do not know.", const=1)]


class LevelRisk(msgspec.Struct, frozen=True, gc=False):
    """One replica count of a plan with its risk and cost over the window [lead time, lead time + commit time].

    Attributes:
        replicas: the count.
        p_miss: probability that attainment falls below the objective in the window.
        p_miss_stderr: standard error of that probability.
        cost_gpu_hours: cost of the count over the window.
        miss_share: share of the window's requests that is expected to miss the SLO.
    """

    replicas: int
    p_miss: float
    p_miss_stderr: float
    cost_gpu_hours: float
    miss_share: float = 0.0


class SurgeAhead(msgspec.Struct, frozen=True):
    """A surge that has kept a period and is expected again, or is under way.

    It came `seen` times of the `due` times that its period asks for.
    """

    start_ts_ms: Annotated[NonNegativeInt, _field("When it is expected to begin, or began.", unit="ms")]
    begun: Annotated[bool, _field("Whether it is under way.")]
    chance: Annotated[Ratio, _field("Probability that it comes.", unit="1")]
    period_s: Annotated[NonNegativeFloat, _field("Period that it has kept.", unit="s")]
    length_s: Annotated[NonNegativeFloat, _field("How long it lasted, the median.", unit="s")]
    arrival_rate: Annotated[NonNegativeFloat, _field("Requests that it added, the median.", unit="1/s")]
    seen: Annotated[NonNegativeInt, _field("How often it came, of those remembered.")]
    due: Annotated[NonNegativeInt, _field("How often it would have by its period.")]


class JumpsAhead(msgspec.Struct, frozen=True):
    """Jumps that no forecast has in it, expected as often as they came of late.

    Some of the forecast's paths have one such jump added.
    """

    per_hour: Annotated[NonNegativeFloat, _field("How often one is expected.", unit="1/h")]
    arrival_rate: Annotated[NonNegativeFloat, _field("Requests that one adds to those of now, the median.", unit="1/s")]
    seen: Annotated[NonNegativeInt, _field("How many are remembered.")]


class Quantiles(msgspec.Struct, frozen=True, gc=False):
    """Quantiles of one number."""

    levels: Annotated[tuple[Ratio, ...], _field("Levels, ascending.", unit="1")]
    values: Annotated[tuple[float, ...], _field("One value per level.", unit="the field's")]


class PromiseCapacity(msgspec.Struct, frozen=True, gc=False):
    """What one replica carries within one promise of the SLO, estimated.

    The estimate comes from the percentiles of telemetry, for one promise alone.
    """

    promise: Annotated[str, _field("Time to first token, or time per token.", enum=["ttft", "tpot"])]
    capacity: Annotated[
        Quantiles, _field("Load at which just the allowed share misses it, of the forecast's indicator.", unit="1/s")
    ]
    miss_share: Annotated[
        Ratio, _field("Share expected to miss it at the forecast's median peak on the proposed count.", unit="1")
    ]


class WorkView(msgspec.Struct, frozen=True, gc=False):
    """What the requests of now ask of a replica, by the law of its engine."""

    prompt_tokens: Annotated[NonNegativeFloat, _field("Of the mean request; those that a prefill computes.", unit="1")]
    output_tokens: Annotated[NonNegativeFloat, _field("Of the mean answer.", unit="1")]
    work_s: Annotated[
        NonNegativeFloat, _field("Time of a replica that one request takes, beside the fixed cost.", unit="s")
    ]
    binding: Annotated[str, _field("What reaches its limit first as the load grows.", enum=["tpot", "kv_cache"])]
    utilization: Annotated[Ratio, _field("Of a replica at that limit.", unit="1")]
    heavier_ratio: Annotated[
        NonNegativeFloat | None,
        _field(
            "Work of a request when a new replica has served its commit time, by that of now, 95th percentile; "
            "null: too little is known, or it hardly changes.",
            unit="1",
        ),
    ] = None
    contradiction: Annotated[
        str | None,
        _field(
            "How counters contradict each other in most slots of the last ten minutes: `tokens_without_requests`, "
            "`requests_without_tokens` or `more_work_than_time`. Such slots teach nothing, and what is known of the "
            "capacity fades; null: they do not."
        ),
    ] = None


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A bound that holds beside the declared ones: the guard that keeps it, and the reason for people."""

    guard: str
    low: int | None
    high: int | None
    reason: str


class ClassRisk(msgspec.Struct, frozen=True, gc=False):
    """What one SLO class asks for."""

    name: Annotated[
        Identifier, _field("Of the class; of several, joined by `+`, where telemetry does not tell them apart.")
    ]
    objective: Annotated[Ratio, _field("Wanted share of its requests within its SLO.", unit="1")]
    epsilon: AcceptedRisk
    replicas: Annotated[NonNegativeInt | None, _field("Fewest that keep it; null: no plan.")]
    p_miss: Annotated[Ratio | None, _field("Risk with so many; null: not computed.", unit="1")]
    budget_left_ratio: Annotated[float, _field("Share of its error budget that is left.", unit="1")]


class InputFacts(msgspec.Struct, frozen=True):
    """The telemetry behind the plan.

    It is all that the guards know of it.
    """

    arrival_rate: Annotated[
        NonNegativeFloat | None, _field("Requests in the last slot; null: not observed.", unit="1/s")
    ]
    observed_ratio: Annotated[
        Ratio, _field("Share of the context's steps with what the workload is planned by.", unit="1")
    ]
    observed_steps: Annotated[NonNegativeInt, _field("Steps of the context with an observed arrival rate.")]
    oldest_age_ms: Annotated[
        int | None, _field("Age at the origin of the newest sample of the quietest source; null: no source.", unit="ms")
    ]
    coverage_ratio: Annotated[
        Ratio,
        _field("Sources heard in the last slot over sources due, of requests or of GPUs, whichever is less.", unit="1"),
    ]
    censored: Annotated[bool, _field("The arrival rate is known from completed requests only.")]
    flat: Annotated[bool, _field("The arrival rate has not moved for a suspicious time.")]
    cliff: Annotated[bool, _field("The arrival rate fell suspiciously far within one step.")]
    zero_after_nonzero: Annotated[bool, _field("The arrival rate is exactly zero and was not before.")]
    offsets: Annotated[dict[str, int], _field("Per telemetry source the offset of the record that closed the slot.")]


class WorkloadPlan(msgspec.Struct, frozen=True):
    """What the forecast stage says of one workload at one origin.

    Attributes:
        refused: why there is no plan (silent, warming_up, forecast, no_fleet_facts, plan_full, retired); decide then
            holds.
        proposed: replicas asked for; None = no plan was made at this origin.
        epsilon: risk that replicas fall behind that the plan was allowed; None = no plan.
        miss_price: replicas that a replica's worth of missed requests cost; None = no plan.
        budget_left_ratio: share of the error budget that is left.
        standing: bounds that hold whatever is proposed.
        class_risks: for each of `classes`, what `risks` are for the one that binds.
        indicator: what load is counted in; None = what the workload's role says.
        outlook: what the forecast is held to when its slot is observed.
        power_w: measured draw of one replica.
        proposals: replicas by proposer, within bounds.
        surge: the first surge to come again.
        promises: those known to have been missed, the first to give way first.
        lead_time_starts: starts that the lead time was learned from.
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
    miss_price: float | None = None
    budget_left_ratio: float | None = None
    standing: tuple[Limit, ...] = ()
    p_needed: float | None = None
    slo_class: str | None = None
    classes: tuple[ClassRisk, ...] = ()
    class_risks: tuple[tuple[LevelRisk, ...], ...] = ()
    indicator: str | None = None
    outlook: PendingForecast | None = None
    power_w: float | None = None
    proposals: dict[str, int] = {}
    surge: SurgeAhead | None = None
    jumps: JumpsAhead | None = None
    promises: tuple[PromiseCapacity, ...] = ()
    work: WorkView | None = None
    lead_time_starts: int = 0


class PlanOf(msgspec.Struct, Generic[P], frozen=True):
    """One record of the `plans` log: everything one pages partition says at one origin.

    `P` is the type of a workload's plan, which some readers leave packed.
    """

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
    """Quantile forecast of the target indicators of one workload.

    Public: topic `forecasts`.
    """

    forecast_id: Annotated[Identifier, _field("Fixed by fleet, workload, origin and model.")]
    workload: WorkloadId
    origin_ts_ms: OriginMs
    step_ms: Annotated[int, _field("Length of one step.", unit="ms", exclusiveMinimum=0)]
    source: Annotated[str, _field("Forecaster that made it, for example `ridge` or `seasonal_naive`.")]
    model: Annotated[str, _field("Fingerprint of the model in force.")]
    quantile_levels: Annotated[tuple[Ratio, ...], _field("Levels, ascending.", unit="1", minItems=1)]
    targets: Annotated[
        dict[str, tuple[tuple[float, ...], ...]],
        _field(
            "Per indicator one row per step after the origin, each with one value per level.", unit="the indicator's"
        ),
    ]
    peaks: Annotated[
        dict[str, tuple[float, ...]],
        _field("Per indicator the quantiles of its highest step within the window.", unit="the indicator's"),
    ]
    peak_window_s: Annotated[NonNegativeFloat, _field("Time after the origin that the peaks cover.", unit="s")]
    v: FormatVersion = 1


class GuardStep(msgspec.Struct, frozen=True):
    """One guard that spoke."""

    guard: Annotated[Identifier, _field("Name of the guard.")]
    before: Annotated[NonNegativeInt, _field("Replicas it was given.")]
    after: Annotated[NonNegativeInt, _field("Replicas it left.")]
    reason: Annotated[str, _field("Why, for people.")]


class ReplicaView(msgspec.Struct, frozen=True):
    """Replica counts before and after the decision."""

    ready: Annotated[NonNegativeInt | None, _field("Serving; null: not reported.")]
    pending: Annotated[NonNegativeInt | None, _field("Ordered, not serving yet; null: not reported.")]
    current: Annotated[NonNegativeInt | None, _field("Counted as in force: what `hold` keeps.")]
    proposed: Annotated[NonNegativeInt | None, _field("What the planner asked for; null: no plan.")]
    final: Annotated[NonNegativeInt | None, _field("What the guards left of it; null: nothing to count from.")]


class RiskView(msgspec.Struct, frozen=True):
    """The stated risk and what each replica count would run.

    Epsilon, objective and risks are those of `slo_class`, the class that asked for most, where there are several. The
    standard error belongs to the final count.
    """

    epsilon: AcceptedRisk
    objective: Annotated[Ratio, _field("Wanted share of requests within the SLO.", unit="1")]
    p_miss: Annotated[
        dict[str, float],
        _field("Replica count (as text) to the probability that attainment falls below the objective.", unit="1"),
    ]
    p_miss_stderr: Annotated[
        NonNegativeFloat | None, _field("Standard error of the final count's risk; null: not computed.", unit="1")
    ]
    budget_left_ratio: Annotated[
        float | None, _field("Share of the error budget that is left; null: not known.", unit="1")
    ] = None
    p_needed: Annotated[
        Ratio | None,
        _field(
            "Probability that the last replica is needed before it could come back; null: it stays anyway.", unit="1"
        ),
    ] = None
    slo_class: Annotated[
        str | None, _field("SLO class that asked for most, whose risks these are; null: there is only one.")
    ] = None
    classes: Annotated[tuple[ClassRisk, ...], _field("What each SLO class asks for; empty: there is only one.")] = ()
    miss_share: Annotated[
        dict[str, float], _field("Replica count (as text) to the share of requests expected to miss the SLO.", unit="1")
    ] = {}
    miss_price: Annotated[
        NonNegativeFloat | None,
        _field("Replicas that a replica's worth of missed requests cost in the plan; null: no plan.", unit="1"),
    ] = None
    promises: Annotated[
        tuple[PromiseCapacity, ...],
        _field("What one replica carries within each promise known to have been missed, the first to give way first."),
    ] = ()


class ForecastView(msgspec.Struct, frozen=True):
    """The forecast that the plan rests on."""

    model: Annotated[str, _field("Fingerprint of the model in force.")]
    source: Annotated[str | None, _field("Forecaster that answered for this workload; null: none did.")]
    indicator: Annotated[str, _field("What is forecast.")]
    unit: Annotated[str, _field("Unit of the indicator.")]
    window_s: Annotated[
        NonNegativeFloat | None, _field("Time after the origin that the peak covers; null: no plan.", unit="s")
    ]
    peak: Annotated[
        Quantiles | None, _field("Highest demand within the window; null: no plan.", unit="the indicator's")
    ]
    surge: Annotated[
        SurgeAhead | None, _field("The first surge that comes again within the horizon, or is under way; null: none.")
    ] = None
    jumps: Annotated[JumpsAhead | None, _field("Jumps that are in some of the futures of this plan; null: none.")] = (
        None
    )


class Fingerprint(msgspec.Struct, frozen=True):
    """What was in force."""

    policy: Annotated[str, _field("Of everything declared that can change a decision.")]
    model: Annotated[str, _field("Of model, parameters and code.")]


class Decision(msgspec.Struct, frozen=True):
    """One decision of one workload at one origin, holds included.

    Public: topic `decisions`.
    """

    decision_id: Annotated[
        Identifier, _field("Fixed by fleet, workload, origin, policy and model: a replay gives the same id.")
    ]
    workload: WorkloadId
    origin_ts_ms: OriginMs
    mode: Annotated[str, _field("Commands are published in `act` only.", enum=["observe", "act"])]
    action: Annotated[
        str, _field("What becomes of the replicas; `retired` ends a workload.", enum=["up", "down", "hold", "retired"])
    ]
    reason: Annotated[
        Identifier, _field("Guard that set the final count; else the proposer; else why there was no plan.")
    ]
    replicas: Annotated[ReplicaView, _field("Counts before and after.")]
    risk: Annotated[RiskView, _field("Stated risk, and risk per replica count.")]
    forecast: Annotated[ForecastView, _field("What demand the plan expects.")]
    capacity_per_replica: Annotated[
        Quantiles | None,
        _field(
            "What one replica carries within the SLO, of the forecast's indicator; null: not known yet.", unit="1/s"
        ),
    ]
    lead_time_s: Annotated[
        Quantiles | None, _field("Time from command to serving replica; null: not known yet.", unit="s")
    ]
    proposer: Annotated[str | None, _field("Who proposed the count that the guards were given; null: nobody did.")]
    guards: Annotated[tuple[GuardStep, ...], _field("The guards that spoke, in order.")]
    shadow: Annotated[
        dict[str, int], _field("What other rules than the proposer would have wanted: rule to replicas, within bounds.")
    ]
    inputs: Annotated[InputFacts, _field("State of the telemetry.")]
    fingerprint: Annotated[Fingerprint, _field("Policy and model in force.")]
    command_id: Annotated[
        str | None, _field("The lease that this decision starts or renews; null: it gives no command.")
    ]
    work: Annotated[
        WorkView | None, _field("What requests ask of a replica now; null: engines do not report what tells it.")
    ] = None
    lead_time_starts: Annotated[
        NonNegativeInt, _field("Starts of replicas that the lead time was learned from; 0: it is the declared one.")
    ] = 0
    v: FormatVersion = 1


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """The object whose replicas are set."""

    api_version: Annotated[str, _field("As Kubernetes writes it.")]
    kind: Annotated[str, _field("For example `Deployment`.")]
    namespace: Annotated[str, _field("Its namespace.")]
    name: Annotated[str, _field("Its name.")]


class Command(msgspec.Struct, frozen=True):
    """The lease in force for one workload: safe to obey late, twice or out of order.

    Public: topic `commands`.
    """

    command_id: Annotated[Identifier, _field("New only when the wanted count changes; a renewed lease keeps it.")]
    decision_id: Annotated[Identifier, _field("The decision behind this record.")]
    workload: WorkloadId
    target: Annotated[Target, _field("The object to scale.")]
    replicas: Annotated[NonNegativeInt, _field("Wanted replicas, absolute; never a difference.")]
    expected_current: Annotated[
        NonNegativeInt, _field("Replicas that the decision saw; another number means someone else acts.")
    ]
    epoch: Annotated[NonNegativeInt, _field("Raised only by `harmony state reset`; a lower one is void.")]
    sequence: Annotated[NonNegativeInt, _field("Grows with every decision within an epoch; a lower one is void.")]
    issued_ts_ms: Annotated[NonNegativeInt, _field("The decision's origin.", unit="ms")]
    valid_until_ts_ms: Annotated[
        NonNegativeInt, _field("From this instant on the lease has run out and must not be applied.", unit="ms")
    ]
    reason: Annotated[Identifier, _field("The decision's reason.")]
    p_miss: Annotated[
        Ratio | None, _field("Risk of missing the objective with these replicas; null: not computed.", unit="1")
    ]
    epsilon: AcceptedRisk
    v: FormatVersion = 1


class Pin(msgspec.Struct, frozen=True):
    """Break glass: an operator holds a workload at `replicas` until `until_ts_ms` (None = until unpinned)."""

    replicas: Annotated[int, msgspec.Meta(ge=0, le=MAX_REPLICAS)]
    until_ts_ms: int | None = None
    by: str = ""
    reason: str = ""
