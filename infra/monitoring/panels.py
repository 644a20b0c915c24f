"""What the dashboards show: rows of panels, each with its queries; `build` turns them into Grafana's JSON.

`RATE` stands for Grafana's rate interval and `WORKLOAD` for the chosen workloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RATE = "$__rate_interval"
WORKLOAD = "$workload"

Unit = Literal["short", "percentunit", "s", "ops", "bytes", "none"]


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how Grafana names its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel. `stacked` draws a share of a whole; `stat` shows the newest number only; spans are of 24 columns.

    `signed` lets the axis go below 0.
    """

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "stat"] = "lines"
    span: int = 12
    signed: bool = False


@dataclass(frozen=True, slots=True)
class RowSpec:
    title: str
    panels: tuple[PanelSpec, ...]


@dataclass(frozen=True, slots=True)
class DashboardSpec:
    """One dashboard; `by_workload` adds a choice of workloads."""

    uid: str
    title: str
    description: str
    rows: tuple[RowSpec, ...]
    by_workload: bool = False


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[{RATE}])))"


def _quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    suffix = f" {{{{{by}}}}}" if by else ""
    return tuple(Query(_quantile(q, metric, by), f"p{q * 100:g}{suffix}") for q in (0.5, 0.99))


FLEET = DashboardSpec(
    "harmony-fleet",
    "HARMONY / Fleet",
    "Replicas, risk and decisions of the whole fleet.",
    (
        RowSpec(
            "Now",
            (
                PanelSpec(
                    "Replicas ready",
                    "As the fleet last reported.",
                    "none",
                    (Query('max(harmony_replicas{state="ready"})', "ready"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Replicas wanted",
                    "By the last decision of every workload.",
                    "none",
                    (Query('max(harmony_replicas{state="wanted"})', "wanted"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Highest risk",
                    "The largest probability of missing the objective over all workloads with a plan.",
                    "percentunit",
                    (Query("max(harmony_p_miss)", "P(miss)"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Commands per minute",
                    "New commands; renewals of a lease are not counted.",
                    "none",
                    (Query(f"60 * sum(rate(harmony_commands_total[{RATE}]))", "commands"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Silent sources",
                    "Telemetry sources with a partition that has had no page or tick for the configured steps.",
                    "none",
                    (Query("sum(max by (source) (harmony_source_silent))", "silent"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Workers",
                    "Workers that answer a scrape.",
                    "none",
                    (Query("count(harmony_build_info)", "workers"),),
                    "stat",
                    4,
                ),
            ),
        ),
        RowSpec(
            "Replicas and risk",
            (
                PanelSpec(
                    "Replicas",
                    "Of the whole fleet.",
                    "none",
                    (Query("max by (state) (harmony_replicas)", "{{state}}"),),
                ),
                PanelSpec(
                    "Risk by workload",
                    "Probability of missing the objective with the decided replicas.",
                    "percentunit",
                    (Query("topk(20, max by (workload) (harmony_p_miss))", "{{workload}}"),),
                ),
                PanelSpec(
                    "Wanted and not ready",
                    "Replicas that a decision wants and the fleet has not reported ready.",
                    "none",
                    (
                        Query(
                            "topk(20, max by (workload) (harmony_replicas_wanted)"
                            " - max by (workload) (harmony_replicas_ready))",
                            "{{workload}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Wanted replicas by workload",
                    "By the last decision.",
                    "none",
                    (Query("topk(20, max by (workload) (harmony_replicas_wanted))", "{{workload}}"),),
                    "stacked",
                ),
            ),
        ),
        RowSpec(
            "Adoption and regret",
            (
                PanelSpec(
                    "Observed: what is held and what HARMONY would hold",
                    "Mean replicas of workloads that are only observed: their scaler's, HARMONY's, the load's need.",
                    "short",
                    (
                        Query(
                            "sum by (part) (rate(harmony_replica_seconds_total"
                            f'{{mode="observe",part=~"held|wanted|needed"}}[{RATE}]))',
                            "{{part}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Observed: replicas saved",
                    "Replicas held that HARMONY would have given up; below 0 it would have held more.",
                    "short",
                    (
                        Query(
                            f'sum(rate(harmony_replica_seconds_total{{mode="observe",part="held"}}[{RATE}]))'
                            f' - sum(rate(harmony_replica_seconds_total{{mode="observe",part="wanted"}}[{RATE}]))',
                            "saved",
                        ),
                    ),
                    span=6,
                    signed=True,
                ),
                PanelSpec(
                    "Held beyond and short of the need",
                    "Replicas held above and below what each step's load turned out to need, as seen afterwards.",
                    "short",
                    (
                        Query(
                            f'sum by (mode, part) (rate(harmony_replica_seconds_total{{part=~"above|below"}}[{RATE}]))',
                            "{{part}} ({{mode}})",
                        ),
                    ),
                    span=6,
                ),
            ),
        ),
        RowSpec(
            "Decisions",
            (
                PanelSpec(
                    "Decisions by action",
                    "Holds included.",
                    "ops",
                    (Query(f"sum by (action) (rate(harmony_decisions_total[{RATE}]))", "{{action}}"),),
                    "stacked",
                ),
                PanelSpec(
                    "Decisions by reason",
                    "The guard, proposer or refusal that had the last word.",
                    "ops",
                    (Query(f"sum by (reason) (rate(harmony_decisions_total[{RATE}])) > 0", "{{reason}}"),),
                    "stacked",
                ),
                PanelSpec(
                    "Refusals",
                    "Workloads for which no plan was made.",
                    "ops",
                    (Query(f"sum by (reason) (rate(harmony_refusals_total[{RATE}]))", "{{reason}}"),),
                ),
                PanelSpec(
                    "Metrics left out by the cap",
                    "Updates of per-workload metrics beyond advanced.worker.metrics_max_workloads.",
                    "ops",
                    (Query(f"sum(rate(harmony_workload_gauges_dropped_total[{RATE}]))", "dropped"),),
                ),
            ),
        ),
    ),
)

_CHOSEN = f'{{workload=~"{WORKLOAD}"}}'

WORKLOADS = DashboardSpec(
    "harmony-workload",
    "HARMONY / Workload",
    "One or some workloads: what was wanted and what was there, at which risk; and how good the forecasts are.",
    (
        RowSpec(
            "Replicas",
            (
                PanelSpec(
                    "Wanted and ready",
                    "By the last decision, and as the fleet last reported.",
                    "none",
                    (
                        Query(f"max by (workload) (harmony_replicas_wanted{_CHOSEN})", "{{workload}} wanted"),
                        Query(f"max by (workload) (harmony_replicas_ready{_CHOSEN})", "{{workload}} ready"),
                    ),
                ),
                PanelSpec(
                    "Risk",
                    "Probability of missing the objective with the decided replicas.",
                    "percentunit",
                    (Query(f"max by (workload) (harmony_p_miss{_CHOSEN})", "{{workload}}"),),
                ),
            ),
        ),
        RowSpec(
            "Forecasts of all workloads",
            (
                PanelSpec(
                    "Coverage of the 80 % band",
                    "Share of recent demand inside the band; 0.8 is right.",
                    "percentunit",
                    (
                        Query(
                            'avg by (forecaster, target) (harmony_forecast_coverage_ratio{band="0.8"})',
                            "{{forecaster}} {{target}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Loss",
                    "Mean pinball loss as a share of demand, seasonal naive beside the rest; lower is better.",
                    "percentunit",
                    (
                        Query(
                            "avg by (forecaster, target) (harmony_forecast_pinball)",
                            "{{forecaster}} {{target}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Better than seasonal naive",
                    "1 is perfect, 0 no better, below 0 worse. Empty until a forecaster other than it was scored.",
                    "percentunit",
                    (Query("forecaster_target:harmony_forecast_skill:ratio", "{{forecaster}} {{target}}"),),
                    signed=True,
                ),
                PanelSpec(
                    "Forecasts by forecaster",
                    "Who made what was published.",
                    "ops",
                    (Query(f"sum by (source) (rate(harmony_forecasts_total[{RATE}]))", "{{source}}"),),
                    "stacked",
                ),
                PanelSpec(
                    "Demotions and trials",
                    "Workloads that were handed to this tier, down for bad forecasts or up on trial.",
                    "short",
                    (Query(f"sum by (tier) (increase(harmony_forecast_tier_changes_total[{RATE}]))", "{{tier}}"),),
                ),
                PanelSpec(
                    "Calls into plug-ins",
                    "By kind and outcome; skipped ones were not made after failures, or while one was late.",
                    "ops",
                    (
                        Query(
                            f"sum by (kind, outcome) (rate(harmony_plugin_calls_total[{RATE}]))",
                            "{{kind}} {{outcome}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Coverage of every band",
                    "Share of recent demand inside each band; it should be the band's own number.",
                    "percentunit",
                    (
                        Query(
                            "avg by (forecaster, band)"
                            ' (harmony_forecast_coverage_ratio{target="request.arrival_rate"})',
                            "{{forecaster}} {{band}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Forecast values scored",
                    "Once their truth has arrived.",
                    "ops",
                    (Query(f"sum by (forecaster) (rate(harmony_forecast_scores_total[{RATE}]))", "{{forecaster}}"),),
                ),
            ),
        ),
    ),
    by_workload=True,
)

PIPELINE = DashboardSpec(
    "harmony-pipeline",
    "HARMONY / Pipeline",
    "Telemetry in, commands out: how much, how late, how fast, and what went wrong.",
    (
        RowSpec(
            "Telemetry",
            (
                PanelSpec(
                    "Samples by outcome",
                    "Late and duplicate samples are counted and not used again.",
                    "ops",
                    (Query(f"sum by (outcome) (rate(harmony_samples_total[{RATE}]))", "{{outcome}}"),),
                ),
                PanelSpec(
                    "Lateness",
                    "How far samples lay behind stream time; above the grace they come too late.",
                    "s",
                    _quantiles("harmony_sample_lateness_seconds", "source"),
                ),
                PanelSpec(
                    "Dead letters",
                    "Records refused, by reason.",
                    "ops",
                    (Query(f"sum by (code) (rate(harmony_dead_letters_total[{RATE}]))", "{{code}}"),),
                ),
                PanelSpec(
                    "Slots and pages",
                    "Pages written per source, and slots joined of them; counted per partition.",
                    "ops",
                    (
                        Query(f"sum by (source) (rate(harmony_pages_total[{RATE}]))", "pages {{source}}"),
                        Query(f"sum(rate(harmony_slots_total[{RATE}]))", "slots"),
                    ),
                ),
            ),
        ),
        RowSpec(
            "Speed",
            (
                PanelSpec(
                    "Telemetry to command",
                    "From the broker stamp that closed a slot to each stage's acknowledged output.",
                    "s",
                    _quantiles("harmony_telemetry_to_command_seconds", "stage"),
                ),
                PanelSpec(
                    "Lag",
                    "Records that a stage has not read yet.",
                    "short",
                    (Query("sum by (stage) (harmony_lag_records)", "{{stage}}"),),
                ),
                PanelSpec(
                    "Publishing",
                    "Time until outputs and commit record are acknowledged.",
                    "s",
                    _quantiles("harmony_stage_seconds", "stage"),
                ),
                PanelSpec(
                    "Records folded in one go",
                    "Larger means that the stage is catching up.",
                    "short",
                    _quantiles("harmony_stage_batch_records", "stage"),
                ),
            ),
        ),
        RowSpec(
            "Model",
            (
                PanelSpec("Inference", "Time of one batch.", "s", _quantiles("harmony_inference_seconds")),
                PanelSpec("Planning", "Time to plan one batch.", "s", _quantiles("harmony_plan_seconds")),
                PanelSpec("Batch size", "Workloads in one batch.", "short", _quantiles("harmony_batch_rows")),
                PanelSpec(
                    "Wait for the batch", "Of one request for forecasts.", "s", _quantiles("harmony_batch_wait_seconds")
                ),
            ),
        ),
        RowSpec(
            "Health",
            (
                PanelSpec(
                    "Kafka's complaints",
                    "Warnings and errors of the Kafka clients.",
                    "ops",
                    (Query(f"sum by (operation) (rate(harmony_kafka_errors_total[{RATE}]))", "{{operation}}"),),
                ),
                PanelSpec(
                    "Recovery",
                    "Mean time to restore the assigned partitions after a start or a rebalance, since the start.",
                    "s",
                    (
                        Query(
                            "sum by (instance) (harmony_restore_seconds_sum)"
                            " / sum by (instance) (harmony_restore_seconds_count)",
                            "{{instance}}",
                        ),
                    ),
                ),
                PanelSpec(
                    "Silent sources",
                    "1 while a partition of the source has had no page or tick for the configured steps.",
                    "none",
                    (Query("max by (source) (harmony_source_silent)", "{{source}}"),),
                ),
                PanelSpec(
                    "Memory",
                    "Resident memory of each worker.",
                    "bytes",
                    (Query("process_resident_memory_bytes and on (instance) harmony_build_info", "{{instance}}"),),
                ),
                PanelSpec(
                    "What runs",
                    "Versions and fingerprints in force, as labels.",
                    "none",
                    (
                        Query("harmony_build_info", "{{instance}} version {{version}}"),
                        Query("harmony_policy_info", "{{instance}} policy {{fingerprint}}"),
                        Query("harmony_model_info", "{{instance}} model {{fingerprint}}"),
                    ),
                ),
                PanelSpec(
                    "Measurements dropped",
                    "Each is a programming error; please report it.",
                    "ops",
                    (Query(f"sum(rate(harmony_meter_errors_total[{RATE}]))", "dropped"),),
                ),
            ),
        ),
    ),
)

DASHBOARDS = (FLEET, WORKLOADS, PIPELINE)
