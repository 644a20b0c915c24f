"""Rules are valid, every alert fires when it should and not when it should not, and each has a runbook."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.observability.catalogue import METRICS
from infra.observability.dashboards.build import DASHBOARDS
from infra.observability.metrics import PREFIX
from tests.infra.observability.places import DEPLOY, RULES
from tests.programs import ROOT, needs

ALERTS = {
    rule["alert"]: rule for g in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"] for rule in g["rules"]
}
RECORDED = [rule for g in yaml.safe_load((RULES / "recording.yml").read_text())["groups"] for rule in g["rules"]]
WORKER = 'instance="w0",job="harmony"'


@dataclass(frozen=True)
class Case:
    """Series (Prometheus' notation, a value per minute) under which an alert fires at `at`, and must not at `quiet`."""

    alert: str
    series: dict[str, str]
    at: str
    labels: dict[str, str] = field(default_factory=dict)
    summary: str | None = None
    quiet: str | None = None


CASES = (
    Case("HarmonyWorkerDown", {f"up{{{WORKER}}}": "1x10 0x10"}, "14m", {"instance": "w0", "job": "harmony"},
         "Worker w0 does not answer", "11m"),
    Case("HarmonyRestarts", {f"process_start_time_seconds{{{WORKER}}}": "100x5 460 520 580 580x20"}, "9m",
         {"instance": "w0", "job": "harmony"}, "Worker w0 has started 3 times within 15 minutes", "5m"),
    Case("HarmonyNoTelemetry", {'harmony_samples_total{outcome="accepted"}': "0+600x10 6000x15"}, "19m", {},
         "No telemetry sample has been accepted for 5 minutes", "12m"),
    # The last worker has gone, and its target with it.
    Case("HarmonyNoTelemetry", {'harmony_samples_total{outcome="accepted"}': "0+600x10 stale"}, "19m", {},
         "No telemetry sample has been accepted for 5 minutes", "12m"),
    Case("HarmonySourceSilent", {'harmony_source_silent{source="gpu",instance="a"}': "0x5 1x5",
         'harmony_source_silent{source="gpu",instance="b"}': "0x20"}, "8m", {"source": "gpu"},
         "Telemetry source gpu has a partition without page or tick", "5m"),
    Case("HarmonySourceStopped", {'harmony_samples_total{outcome="accepted"}': "0+900x30",
         'harmony_sample_lateness_seconds_count{source="requests"}': "0+600x30",
         'harmony_sample_lateness_seconds_count{source="gpu"}': "0+300x10 3000x15"}, "19m", {"source": "gpu"},
         "No gpu sample for 5 minutes while the other source goes on", "12m"),
    # One that is read every other minute is heard.
    Case("HarmonyTelemetryPartial", {'harmony_telemetry_coverage_ratio{workload="a",instance="a"}': "1x5 0.75x30",
         'harmony_telemetry_coverage_ratio{workload="b"}': " ".join(["1 0.5"] * 15)},
         "18m", {"workload": "a"}, "Of the engines or GPUs of a only 75% are heard", "14m"),
    Case("HarmonyNoDecisions", {'harmony_samples_total{outcome="accepted"}': "0+600x30",
         'harmony_decisions_total{action="hold",reason="mode"}': "0+4x10 40x15"}, "19m", {},
         "Telemetry arrives, and no decision has been made for 5 minutes", "12m"),
    Case("HarmonyNoDecisions", {'harmony_samples_total{outcome="accepted"}': "0+600x30"}, "9m", {},
         "Telemetry arrives, and no decision has been made for 5 minutes", "1m"),  # none since the start
    Case("HarmonyCommandsLate", {
         'harmony_telemetry_to_command_seconds_bucket{stage="decide",le="5"}': "0x30",
         'harmony_telemetry_to_command_seconds_bucket{stage="decide",le="10"}': "0+60x30",
         'harmony_telemetry_to_command_seconds_bucket{stage="decide",le="+Inf"}': "0+60x30"}, "9m", {"stage": "decide"},
         "One slot in a hundred takes more than 9.95s from telemetry to command", "4m"),
    Case("HarmonyLagHigh", {'harmony_lag_records{stage="ingest",instance="a"}': "6000x20",
         'harmony_lag_records{stage="ingest",instance="b"}': "6000x20"}, "6m", {"stage": "ingest"},
         "Stage ingest is 12000 records behind", "4m"),
    Case("HarmonyOpenTransaction", {'harmony_open_transaction_seconds{stage="ingest",instance="a"}': "0x5 60+60x20",
         'harmony_open_transaction_seconds{stage="ingest",instance="b"}': "0x30"}, "8m", {"stage": "ingest"},
         "A transaction that has been open for 3m 0s holds up stage ingest", "6m"),
    Case("HarmonyDeadLetters", {'harmony_dead_letters_total{code="future"}': "0+60x20"}, "8m", {"code": "future"},
         "1 records per second are refused: future", "4m"),
    Case("HarmonyBoundReached", {'harmony_samples_total{outcome="refused"}': "0x5 200x20"}, "7m", {"bound": "refused"},
         "More is sent than HARMONY takes; the surplus is refused: refused", "4m"),
    Case("HarmonyBoundReached", {'harmony_dead_letters_total{code="limit"}': "0x5 7x20",
         'harmony_dead_letters_total{code="decode"}': "0+60x20"}, "7m", {"bound": "limit"},
         "More is sent than HARMONY takes; the surplus is refused: limit", "4m"),
    Case("HarmonyTelemetryLost", {f"harmony_telemetry_lost_total{{{WORKER}}}": "0x5 200x20"}, "7m", {"instance": "w0"},
         "Retention removed telemetry before w0 had read it", "4m"),
    Case("HarmonyTelemetryLost", {f"harmony_telemetry_lost_total{{{WORKER}}}": "_x5 93x30"}, "7m", {"instance": "w0"},
         "Retention removed telemetry before w0 had read it", "25m"),  # lost before the start
    Case("HarmonySamplesLate", {'harmony_samples_total{outcome="accepted"}': "0+900x30",
         'harmony_samples_total{outcome="late"}': "0+100x30"}, "15m", {},
         "10% of the samples come after their slot has closed", "9m"),
    Case("HarmonyKafkaErrors", {'harmony_kafka_errors_total{operation="produce"}': "0+6x20"}, "10m",
         {"operation": "produce"}, "Kafka clients complain while they produce", "2m"),
    Case("HarmonyWebCrowded", {f'harmony_web_connections_dropped_total{{reason="peer",{WORKER}}}': "0+60x20"}, "8m",
         {"instance": "w0", "reason": "peer"},
         "Worker w0 closes 1 connections per second to its web port to make room (peer)", "4m"),
    # What the objective allows is no alarm, however much that is.
    Case("HarmonyMissRisk", {'harmony_miss_share{workload="a"}': "0.09x5 0.12x15",
         'harmony_miss_share_allowed{workload="a"}': "0.1x20"}, "12m", {"workload": "a"},
         "12% of the requests of a are expected to miss, more than its objective allows", "8m"),
    Case("HarmonyReplicasNotReady", {'harmony_replicas_wanted{workload="a"}': "5x30",
         'harmony_replicas_ready{workload="a"}': "3x30", 'harmony_acting{workload="a"}': "1x30",
         'harmony_replicas_wanted{workload="b"}': "5x30", 'harmony_replicas_ready{workload="b"}': "3x30",
         'harmony_acting{workload="b"}': "0x30"}, "17m", {"workload": "a"}, "a lacks 2 wanted replicas", "14m"),
    Case("HarmonyForecastMiscalibrated", {
         'harmony_forecast_coverage_ratio{band="0.8",forecaster="ridge",target="t"}': "0.4x60",
         'harmony_forecast_coverage_ratio{band="0.8",forecaster="seasonal_naive",target="t"}': "0.1x60",
         'harmony_forecast_scores_total{forecaster="ridge",target="t"}': "600x60"}, "32m",
         {"forecaster": "ridge", "target": "t"}, "The 80 % band of ridge holds only 40% of t", "28m"),
    Case("HarmonyForecastWorseThanNaive", {
         'harmony_forecast_pinball{forecaster="ridge",target="t"}': "0.3x60",
         'harmony_forecast_pinball{forecaster="seasonal_naive",target="t"}': "0.2x60",
         'harmony_forecast_scores_total{forecaster="ridge",target="t"}': "600x60"}, "33m",
         {"forecaster": "ridge", "target": "t"}, "ridge is worse than seasonal naive on t", "28m"),
    Case("HarmonyWorkloadMetricsCapped", {"harmony_workload_gauges_dropped_total": "0x5 1x30"}, "7m", {},
         "More workloads than advanced.worker.metrics_max_workloads have metrics", "4m"),
    Case("HarmonyMeterErrors", {"harmony_meter_errors_total": "0x5 1x30"}, "7m", {},
         "A measurement was dropped for an unknown name, label or value", "4m"),
)  # fmt: skip


A, B = 'fleet="a"', 'fleet="b"'
TWO_FLEETS = (  # what one of them lacks is not made up for by the other
    Case("HarmonyNoTelemetry", {f'harmony_samples_total{{outcome="accepted",{A}}}': "0+600x30",
         f'harmony_samples_total{{outcome="accepted",{B}}}': "0+600x10 6000x15"}, "19m", {"fleet": "b"},
         "No telemetry sample has been accepted for 5 minutes", "12m"),
    Case("HarmonyNoTelemetry", {f'harmony_samples_total{{outcome="accepted",{A}}}': "0+600x30",
         f"up{{{WORKER},{B}}}": "1x30"}, "9m", {"fleet": "b"},
         "No telemetry sample has been accepted for 5 minutes", "1m"),
    Case("HarmonySourceStopped", {f'harmony_samples_total{{outcome="accepted",{A}}}': "0+900x30",
         f'harmony_samples_total{{outcome="accepted",{B}}}': "0+900x30",
         f'harmony_sample_lateness_seconds_count{{source="gpu",{A}}}': "0+600x30",
         f'harmony_sample_lateness_seconds_count{{source="gpu",{B}}}': "0+300x10 3000x15"}, "19m",
         {"source": "gpu", "fleet": "b"}, "No gpu sample for 5 minutes while the other source goes on", "12m"),
    Case("HarmonyNoDecisions", {f'harmony_samples_total{{outcome="accepted",{A}}}': "0+600x30",
         f'harmony_decisions_total{{action="hold",{A}}}': "0+4x30",
         f'harmony_samples_total{{outcome="accepted",{B}}}': "0+600x30"}, "9m", {"fleet": "b"},
         "Telemetry arrives, and no decision has been made for 5 minutes", "1m"),
    Case("HarmonySamplesLate", {f'harmony_samples_total{{outcome="accepted",{A}}}': "0+90000x30",
         f'harmony_samples_total{{outcome="late",{A}}}': "0x30",
         f'harmony_samples_total{{outcome="accepted",{B}}}': "0+900x30",
         f'harmony_samples_total{{outcome="late",{B}}}': "0+100x30"}, "15m", {"fleet": "b"},
         "10% of the samples come after their slot has closed", "9m"),
    Case("HarmonyMissRisk", {f'harmony_miss_share{{workload="w",{A}}}': "0.002x20",
         f'harmony_miss_share_allowed{{workload="w",{A}}}': "0.4x20",
         f'harmony_miss_share{{workload="w",{B}}}': "0.09x5 0.12x15",
         f'harmony_miss_share_allowed{{workload="w",{B}}}': "0.1x20"}, "12m", {"workload": "w", "fleet": "b"},
         "12% of the requests of w are expected to miss, more than its objective allows", "8m"),
    Case("HarmonyReplicasNotReady", {f'harmony_replicas_wanted{{workload="w",{A}}}': "5x30",
         f'harmony_replicas_ready{{workload="w",{A}}}': "5x30", f'harmony_acting{{workload="w",{A}}}': "1x30",
         f'harmony_replicas_wanted{{workload="w",{B}}}': "5x30",
         f'harmony_replicas_ready{{workload="w",{B}}}': "3x30", f'harmony_acting{{workload="w",{B}}}': "1x30"}, "17m",
         {"workload": "w", "fleet": "b"}, "w lacks 2 wanted replicas", "14m"),
    Case("HarmonyForecastWorseThanNaive", {
         f'harmony_forecast_pinball{{forecaster="ridge",target="t",{A}}}': "0.1x60",
         f'harmony_forecast_pinball{{forecaster="seasonal_naive",target="t",{A}}}': "0.9x60",
         f'harmony_forecast_pinball{{forecaster="ridge",target="t",{B}}}': "0.3x60",
         f'harmony_forecast_pinball{{forecaster="seasonal_naive",target="t",{B}}}': "0.2x60",
         f'harmony_forecast_scores_total{{forecaster="ridge",target="t",{B}}}': "600x60"}, "33m",
         {"forecaster": "ridge", "target": "t", "fleet": "b"}, "ridge is worse than seasonal naive on t", "28m"),
)  # fmt: skip


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def unit_test(case: Case) -> dict[str, Any]:
    rule = ALERTS[case.alert]
    fired = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {"summary": case.summary, "runbook_url": rule["annotations"]["runbook_url"]},
    }
    checks: list[dict[str, Any]] = [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": [fired]}]
    if case.quiet:
        checks.append({"eval_time": case.quiet, "alertname": case.alert, "exp_alerts": []})
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": checks,
    }


def run_unit_tests(tests: list[dict[str, Any]], home: Path) -> None:
    file = home / "rules_test.yml"
    rules = [str(path) for path in sorted(RULES.glob("*.yml"))]
    file.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


@needs("promtool")
@pytest.mark.parametrize("case", [*CASES, *TWO_FLEETS], ids=lambda c: c.alert)
def test_the_alert_fires_when_it_should_and_not_before(case: Case, tmp_path: Path) -> None:
    run_unit_tests([unit_test(case)], tmp_path)


@needs("promtool")
def test_the_rule_tests_can_fail(tmp_path: Path) -> None:
    test = unit_test(CASES[0])
    test["input_series"][0]["values"] = "1x20"
    with pytest.raises(AssertionError, match="FAILED"):
        run_unit_tests([test], tmp_path)


@needs("promtool")
def test_recorded_series_are_what_they_say(tmp_path: Path) -> None:
    naive, ridge = (f'harmony_forecast_pinball{{forecaster="{f}",target="t"}}' for f in ("seasonal_naive", "ridge"))
    wanted, ready = (f'harmony_replicas_{state}{{workload="w",instance="i"}}' for state in ("wanted", "ready"))
    acting = 'harmony_acting{workload="w",instance="i"}'
    series = {naive: "0.5x10", ridge: "0.25x10", wanted: "3x10", ready: "5x10", acting: "1x10"}
    expected = {
        "forecaster_target:harmony_forecast_skill:ratio": ('{forecaster="ridge",target="t"}', 0.5),
        "workload:harmony_replicas_missing:max": ('{workload="w"}', 0),
    }
    run_unit_tests(
        [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {"expr": name, "eval_time": "5m", "exp_samples": [{"labels": name + labels, "value": value}]}
                    for name, (labels, value) in expected.items()
                ],
            }
        ],
        tmp_path,
    )


@needs("promtool")
@pytest.mark.parametrize("path", sorted(RULES.glob("*.yml")), ids=lambda p: p.name)
def test_promtool_accepts_the_rules(path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint-fatal", str(path))


def test_every_alert_is_tested_and_has_its_runbook() -> None:
    assert {case.alert for case in CASES} == ALERTS.keys()
    runbooks = set()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        page = ROOT / rule["annotations"]["runbook_url"]
        text = page.read_text()
        assert text.startswith(f"# {name}\n")
        assert f"Severity: {rule['labels']['severity']}. Fires after {rule['for']}." in text
        assert "\n## Look\n" in text
        assert "\n## Do\n" in text
        runbooks.add(page.name)
    index = (ROOT / "docs/operations/runbooks/README.md").read_text()
    assert runbooks == {p.name for p in (ROOT / "docs/operations/runbooks").glob("harmony-*.md")}
    assert all(f"({name})" in index for name in runbooks)


def test_rules_and_runbooks_name_only_what_exists() -> None:
    from typer.main import get_command

    from infra.cli.app import app

    declared = {PREFIX + metric.name for metric in METRICS}
    recorded = {rule["record"] for rule in RECORDED}
    for rule in (*ALERTS.values(), *RECORDED):
        for name in re.findall(r"(?<![\w:])harmony_[a-z_]+", rule["expr"]):
            assert re.sub(r"_(bucket|count)$", "", name) in declared, name
        for name in re.findall(r"\b\w+:harmony_[a-z_]+:\w+", rule["expr"]):
            assert name in recorded, name
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    panels = {panel.title for board in DASHBOARDS for row in board.rows for panel in row.panels}
    for page in (ROOT / "docs/operations/runbooks").glob("*.md"):
        text = re.sub(r"\n  (?=\S)", " ", page.read_text())
        assert set(re.findall(r"`harmony ([a-z]+)", text)) - {"worker"} <= commands, page.name
        for name in re.findall(r"[Pp]anels? \*([^*]+)\*", text):
            assert name in panels, f"{page.name}: no panel {name}"


def test_prometheus_reads_these_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert [Path(p).name for p in config["rule_files"]] == sorted(p.name for p in RULES.glob("*.yml"))
    assert config["scrape_configs"][0]["job_name"] == "harmony"
