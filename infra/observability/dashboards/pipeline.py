"""What the dashboard of the worker itself shows."""

from __future__ import annotations

from infra.observability.dashboards.spec import RATE, DashboardSpec, PanelSpec, Query, RowSpec, quantiles

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
                    quantiles("harmony_sample_lateness_seconds", "source"),
                ),
                PanelSpec(
                    "Refused and lost",
                    "Records refused, by reason, telemetry that retention removed unread, and web connections dropped.",
                    "ops",
                    (
                        Query(f"sum by (code) (rate(harmony_dead_letters_total[{RATE}]))", "{{code}}"),
                        Query(f"sum(rate(harmony_telemetry_lost_total[{RATE}]))", "lost"),
                        Query(f"sum(rate(harmony_web_connections_dropped_total[{RATE}]))", "web connections"),
                    ),
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
                    quantiles("harmony_telemetry_to_command_seconds", "stage"),
                ),
                PanelSpec(
                    "Lag",
                    "Records that a stage has not read yet, and those among them that wait for an open transaction.",
                    "short",
                    (
                        Query("sum by (stage) (harmony_lag_records)", "{{stage}}"),
                        Query("sum by (stage) (harmony_unstable_records)", "{{stage}}, held up"),
                    ),
                ),
                PanelSpec(
                    "Publishing",
                    "Time until outputs and commit record are acknowledged.",
                    "s",
                    quantiles("harmony_stage_seconds", "stage"),
                ),
                PanelSpec(
                    "Records folded in one go",
                    "Larger means that the stage is catching up.",
                    "short",
                    quantiles("harmony_stage_batch_records", "stage"),
                ),
            ),
        ),
        RowSpec(
            "Model",
            (
                PanelSpec("Inference", "Time of one batch.", "s", quantiles("harmony_inference_seconds")),
                PanelSpec("Planning", "Time to plan one batch.", "s", quantiles("harmony_plan_seconds")),
                PanelSpec("Batch size", "Workloads in one batch.", "short", quantiles("harmony_batch_rows")),
                PanelSpec(
                    "Wait for the batch", "Of one request for forecasts.", "s", quantiles("harmony_batch_wait_seconds")
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
                    "Incomplete sources",
                    "Engines or GPUs whose samples lack what their indicators need.",
                    "none",
                    (Query("sum by (source) (harmony_incomplete_sources)", "{{source}}"),),
                ),
                PanelSpec(
                    "Open transactions",
                    "Time that a transaction of a publisher has held up a partition of the stage, the longest.",
                    "s",
                    (Query("max by (stage) (harmony_open_transaction_seconds)", "{{stage}}"),),
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
