"""Every Prometheus metric of HARMONY, declared once: kind, help, labels with their allowed values, buckets.

Names stand without the `harmony_` prefix, as the core reports them through `streams.meter.Meter`. Labels take values
from fixed sets, so that no input can grow the number of series; the per-workload gauges are capped
(`infra.observability.metrics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agents.records import BANDS, LEVELS
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import LATENESS_BOUNDS_MS
from streams.records.decode import UNEXPLAINED
from streams.records.schema import DEAD_LETTER_CODES

OTHER = "other"

Kind = Literal["counter", "gauge", "histogram", "info"]
Domain = Literal["fixed", "open", "workload", "text"]


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a metric.

    Attributes:
        name: as Prometheus shows it.
        values: the allowed values.
        domain: `fixed`: any other value is a programming error; `open`: any other value is shown as "other";
            `workload`: a workload id, of which a capped number gets a series; `text`: short free text (info only).
        default: taken when the caller leaves the label out; None = it must be given.
    """

    name: str
    values: tuple[str, ...] = ()
    domain: Domain = "fixed"
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. A gauge set to NaN, and an info set anew, lose their former series."""

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()


STAGES = ("ingest", "forecast", "decide", "controls")
SAMPLE_OUTCOMES = ("accepted", "late", "duplicate", "dead", "future", "refused")
FORECASTERS = (
    "harmony",
    "pool",
    "ridge",
    "combined",
    "residual_ensemble",
    "seasonal_naive",
    "last_value",
    "climatology",
    "reactive",
)
REFUSALS = ("silent", "warming_up", "no_fleet_facts", "forecast", "capacity_unknown", "plan_full", "retired")
ACTIONS = ("up", "down", "hold", "retired")
# The guards' words; a decision's reason is the last of them that spoke, else a proposer, else a refusal.
GUARDS = (
    "pin",
    "kill_switch",
    "mode",
    "expired",
    "warm_up",
    "fence",
    "freshness",
    "coverage",
    "zero_after_nonzero",
    "cliff",
    "flat",
    "censored",
    "missing_metric",
    "horizon",
    "bounds",
    "fleet_budget",
    "fleet_power",
    "fleet_floor",
    "step_limit",
    "removal_limit",
    "stabilization",
    "tolerance",
    "model_guard",
    "reclaim",
    "first_request",
    "batch",
    "schedule",
    "fallback",
)
PROPOSERS = ("cheapest", "queue_bound", "maximum", "quantile", "reactive", "last_plan", "idle")
# Of the peak of a decision's forecast (`agents.records.LEVELS`).
PEAK_QUANTILES = tuple(f"{level:g}" for level in LEVELS)
KAFKA_OPERATIONS = ("produce", "fetch", "commit", "rebalance", "admin", "connect")

_STAGE = Label("stage", STAGES)
_SOURCE = Label("source", ("requests", "gpu"))
_WORKLOAD = Label("workload", domain="workload")
_FORECASTER = Label("forecaster", FORECASTERS, "open")
_TARGET = Label("target", tuple(i.name for i in DEFAULT_CATALOGUE if i.level == 1), "open")

_LATENESS_S = tuple(bound_ms / 1000 for bound_ms in LATENESS_BOUNDS_MS)
_FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_END_TO_END_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_RESTORE_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)

METRICS: tuple[Metric, ...] = (
    Metric(
        "samples_total",
        "counter",
        "Telemetry samples read, by what became of them.",
        (Label("outcome", SAMPLE_OUTCOMES),),
    ),
    Metric(
        "sample_lateness_seconds",
        "histogram",
        "How far a sample's event time lay behind its partition's stream time.",
        (_SOURCE,),
        _LATENESS_S,
    ),
    Metric(
        "incomplete_sources",
        "gauge",
        "Telemetry sources whose samples lack what their indicators need, over the assigned partitions.",
        (_SOURCE,),
    ),
    Metric("unknown_names_total", "counter", "Values ignored because the catalogue does not know their name."),
    Metric(
        "dead_letters_total",
        "counter",
        "Records refused, by reason code; flood: in a flood, and the reason was not looked for.",
        (Label("code", (*DEAD_LETTER_CODES, UNEXPLAINED), "open"),),
    ),
    Metric(
        "telemetry_lost_total",
        "counter",
        "Offsets of telemetry that retention removed before they were read, transaction markers among them.",
    ),
    Metric("pages_total", "counter", "Slot pages written by the ingest stage.", (_SOURCE,)),
    Metric("slots_total", "counter", "Slots joined from both sources by the forecast stage."),
    Metric(
        "source_silent",
        "gauge",
        "1 while a partition of a telemetry source has had no page or tick for the configured steps, else 0.",
        (_SOURCE,),
    ),
    Metric(
        "lag_records",
        "gauge",
        "Records that the stage has not read yet, summed over its assigned partitions.",
        (_STAGE,),
    ),
    Metric(
        "unstable_records",
        "gauge",
        "Records after the last stable offset, which wait for an open transaction, over the assigned partitions.",
        (_STAGE,),
    ),
    Metric(
        "open_transaction_seconds",
        "gauge",
        "Time that an open transaction has held up an assigned partition, as this worker saw it, the longest; else 0.",
        (_STAGE,),
    ),
    Metric("stage_batch_records", "histogram", "Records that a stage folded in one go.", (_STAGE,), _ROWS),
    Metric(
        "stage_seconds",
        "histogram",
        "Time to publish outputs and commit record, acknowledged, per group of emissions.",
        (_STAGE,),
        _FAST_S,
    ),
    Metric(
        "restore_seconds",
        "histogram",
        "Time to restore the assigned partitions after a start or a rebalance.",
        (),
        _RESTORE_S,
    ),
    Metric(
        "kafka_errors_total",
        "counter",
        "Warnings and errors of the Kafka clients, by what they were doing.",
        (Label("operation", KAFKA_OPERATIONS, "open"),),
    ),
    Metric("batch_rows", "histogram", "Workloads in one inference batch, padding left out.", (), _ROWS),
    Metric("batch_wait_seconds", "histogram", "Time that a workload waited for its inference batch.", (), _FAST_S),
    Metric(
        "inference_seconds",
        "histogram",
        "Time of one inference batch, copies to and from the device included.",
        (),
        _FAST_S,
    ),
    Metric(
        "plan_seconds",
        "histogram",
        "Time to plan and describe one batch of workloads.",
        (),
        _FAST_S,
    ),
    Metric(
        "telemetry_to_command_seconds",
        "histogram",
        "Time from the broker stamp that closed a slot to the stage's acknowledged page, plan or command.",
        (_STAGE,),
        _END_TO_END_S,
    ),
    Metric(
        "forecasts_total",
        "counter",
        "Forecasts published, by the forecaster that made them.",
        (Label("source", FORECASTERS, "open"),),
    ),
    Metric(
        "expected_bursts_total",
        "counter",
        "Plans for a burst that their forecast has not: a surge that keeps a period, or jumps as often as of late.",
        (Label("kind", ("surge", "jumps")),),
    ),
    Metric(
        "forecast_tier_changes_total",
        "counter",
        "Forecasters demoted for a workload, or tried again after a pause, by whose word its plans take since.",
        (Label("tier", ("network", "baselines", "reactive")),),
    ),
    Metric(
        "refusals_total",
        "counter",
        "Workloads for which no plan was made, by reason.",
        (Label("reason", REFUSALS, "open"),),
    ),
    Metric(
        "forecast_coverage_ratio",
        "gauge",
        "Share of recent realised demand inside the forecast's central band, over the last 200 slots or so.",
        (_FORECASTER, _TARGET, Label("band", tuple(BANDS))),
    ),
    Metric(
        "forecast_pinball",
        "gauge",
        "Mean pinball loss over the quantile levels, as a share of mean demand, over the last 200 slots or so.",
        (_FORECASTER, _TARGET),
    ),
    Metric(
        "forecast_scores_total",
        "counter",
        "Forecast values scored against what was then observed; seasonal_naive is always scored beside the rest.",
        (_FORECASTER, _TARGET),
    ),
    Metric(
        "decisions_total",
        "counter",
        "Decisions published, holds included, by action and by the guard or proposer that set the count.",
        (Label("action", ACTIONS), Label("reason", (*GUARDS, *PROPOSERS, *REFUSALS), "open")),
    ),
    Metric(
        "replica_seconds_total",
        "counter",
        "Replicas times time: held, wanted, needed by the load as seen afterwards, held above and below that.",
        (Label("mode", ("observe", "act")), Label("part", ("held", "wanted", "needed", "above", "below"))),
    ),
    Metric("commands_total", "counter", "Commands published with a new id; renewals of a lease are not counted."),
    Metric("replicas", "gauge", "Replicas of the whole fleet.", (Label("state", ("ready", "pending", "wanted")),)),
    Metric("replicas_wanted", "gauge", "Replicas that the last decision asks for.", (_WORKLOAD,)),
    Metric("replicas_ready", "gauge", "Replicas ready as last reported.", (_WORKLOAD,)),
    Metric("replicas_held", "gauge", "Replicas held: ready and on their way.", (_WORKLOAD,)),
    Metric("replicas_needed", "gauge", "Replicas that the load of the newest slot needs.", (_WORKLOAD,)),
    Metric("load_requests_per_second", "gauge", "Requests that arrived in the newest slot.", (_WORKLOAD,)),
    Metric(
        "forecast_peak_requests_per_second",
        "gauge",
        "Forecast of the highest load while a replica ordered now would start and serve: its quantile at each level.",
        (_WORKLOAD, Label("level", PEAK_QUANTILES)),
    ),
    Metric(
        "attainment_ratio",
        "gauge",
        "Share of requests within the SLO over the last 360 steps, by load; none where no telemetry has outcomes.",
        (_WORKLOAD,),
    ),
    Metric(
        "error_budget_left_ratio",
        "gauge",
        "Share of the error budget that is left: 1 = no request missed, 0 = as many as the objective allows.",
        (_WORKLOAD,),
    ),
    Metric(
        "p_miss",
        "gauge",
        "Probability of missing the objective with the decided replicas, 0 to 1.",
        (_WORKLOAD,),
    ),
    Metric(
        "miss_share", "gauge", "Share of requests expected to miss with the decided replicas, 0 to 1.", (_WORKLOAD,)
    ),
    Metric("miss_share_allowed", "gauge", "Share of requests that the objective lets miss, 0 to 1.", (_WORKLOAD,)),
    Metric(
        "telemetry_coverage_ratio",
        "gauge",
        "Share of the telemetry sources due that reported in the newest slot, of requests or of GPUs, the smaller one.",
        (_WORKLOAD,),
    ),
    Metric("acting", "gauge", "1 where decisions are commanded (mode act), 0 in observe.", (_WORKLOAD,)),
    Metric(
        "web_connections_dropped_total",
        "counter",
        "Connections to the web port closed: too many of one address or in all, no open files, or a malformed request.",
        (Label("reason", ("peer", "all", "files", "malformed")),),
    ),
    Metric(
        "workload_gauges_dropped_total",
        "counter",
        "Per-workload gauge updates dropped because the cap on series was reached.",
    ),
    Metric(
        "plugin_calls_total",
        "counter",
        "Calls into a plug-in of one's own; skipped ones were not made after failures, or while one was late.",
        (Label("kind", ("forecaster", "policy")), Label("outcome", ("ok", "failed", "timeout", "skipped"))),
    ),
    Metric(
        "build_info",
        "info",
        "Version of HARMONY and of Python; the value is always 1.",
        (Label("version", domain="text"), Label("python", domain="text")),
    ),
    Metric(
        "model_info",
        "info",
        "Fingerprint of the model in force; the value is always 1.",
        (Label("fingerprint", domain="text"),),
    ),
    Metric(
        "policy_info",
        "info",
        "Fingerprint of the policy in force; the value is always 1.",
        (Label("fingerprint", domain="text"),),
    ),
    Metric(
        "meter_errors_total",
        "counter",
        "Measurements dropped for an unknown name, label or value (a programming error).",
    ),
)
