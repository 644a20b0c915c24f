"""What the dashboard of the whole fleet shows."""

from __future__ import annotations

from infra.observability.dashboards.spec import RATE, DashboardSpec, PanelSpec, Query, RowSpec

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
                    (Query('sum(max by (fleet) (harmony_replicas{state="ready"}))', "ready"),),
                    "stat",
                    4,
                ),
                PanelSpec(
                    "Replicas wanted",
                    "By the last decision of every workload.",
                    "none",
                    (Query('sum(max by (fleet) (harmony_replicas{state="wanted"}))', "wanted"),),
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
                    (Query("sum by (state) (max by (fleet, state) (harmony_replicas))", "{{state}}"),),
                ),
                PanelSpec(
                    "Risk by workload",
                    "Probability of missing the objective with the decided replicas.",
                    "percentunit",
                    (Query("topk(20, max by (workload) (harmony_p_miss))", "{{workload}}"),),
                ),
                PanelSpec(
                    "Wanted and not ready",
                    "Replicas that a decision in `act` wants and the fleet has not reported ready.",
                    "none",
                    (
                        Query(
                            "topk(20, (max by (workload) (harmony_replicas_wanted)"
                            " - max by (workload) (harmony_replicas_ready))"
                            " and on (workload) max by (workload) (harmony_acting) == 1)",
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
                    "The guard, proposer or refusal that set the final count.",
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
