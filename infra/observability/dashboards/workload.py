"""What the dashboard of one or some workloads, and of all forecasts, shows."""

from __future__ import annotations

from infra.observability.dashboards.spec import RATE, WORKLOAD, DashboardSpec, PanelSpec, Query, RowSpec

_CHOSEN = f'{{workload=~"{WORKLOAD}"}}'

WORKLOADS = DashboardSpec(
    "harmony-workload",
    "HARMONY / Workload",
    "One or some workloads: what was wanted and what was there, at which risk; and how good the forecasts are.",
    (
        RowSpec(
            "Load and forecast",
            (
                PanelSpec(
                    "Load against forecast",
                    "What arrives, and the peak that is forecast for when a replica ordered now would serve.",
                    "reqps",
                    (
                        Query(f"max by (workload) (harmony_load_requests_per_second{_CHOSEN})", "{{workload}} load"),
                        Query(
                            f"max by (workload, level) (harmony_forecast_peak_requests_per_second{_CHOSEN})",
                            "{{workload}} {{level}}",
                        ),
                    ),
                    span=24,
                ),
            ),
        ),
        RowSpec(
            "Replicas",
            (
                PanelSpec(
                    "Held and needed",
                    "Ready and on their way, and what the load of the newest slot needs.",
                    "none",
                    (
                        Query(f"max by (workload) (harmony_replicas_held{_CHOSEN})", "{{workload}} held"),
                        Query(f"max by (workload) (harmony_replicas_needed{_CHOSEN})", "{{workload}} needed"),
                    ),
                ),
                PanelSpec(
                    "Attainment",
                    "Share of requests within the SLO over the last 360 steps, and what the objective asks for.",
                    "percentunit",
                    (
                        Query(f"max by (workload) (harmony_attainment_ratio{_CHOSEN})", "{{workload}}"),
                        Query(f"1 - max by (workload) (harmony_miss_share_allowed{_CHOSEN})", "{{workload}} objective"),
                    ),
                ),
                PanelSpec(
                    "Error budget left",
                    "1: no request missed the SLO, 0: as many as the objective allows, below 0: more.",
                    "percentunit",
                    (Query(f"max by (workload) (harmony_error_budget_left_ratio{_CHOSEN})", "{{workload}}"),),
                    signed=True,
                ),
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
                PanelSpec(
                    "Expected misses",
                    "Share of requests expected to miss with the decided replicas, beside what the objective allows.",
                    "percentunit",
                    (
                        Query(f"max by (workload) (harmony_miss_share{_CHOSEN})", "{{workload}}"),
                        Query(f"max by (workload) (harmony_miss_share_allowed{_CHOSEN})", "{{workload}} allowed"),
                    ),
                ),
            ),
        ),
        RowSpec(
            "Telemetry",
            (
                PanelSpec(
                    "Sources heard",
                    "Of those due, of requests or of GPUs, whichever is less; below 1 some are silent or stuck.",
                    "percentunit",
                    (Query(f"min by (workload) (harmony_telemetry_coverage_ratio{_CHOSEN})", "{{workload}}"),),
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
                    "Bursts expected",
                    "Share of plans for a burst that no forecast has: a surge that keeps a period, or jumps.",
                    "percentunit",
                    (
                        Query(
                            f"sum by (kind) (rate(harmony_expected_bursts_total[{RATE}]))"
                            f" / on () group_left () sum(rate(harmony_forecasts_total[{RATE}]))",
                            "{{kind}}",
                        ),
                    ),
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
