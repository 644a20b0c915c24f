"""The metric catalogue obeys the naming rules, and no input can make the meter grow or lie."""

from __future__ import annotations

import ast
import math
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from agents.decide.guards.chain import GATES
from agents.decide.guards.chain import GUARDS as CHAIN
from infra.observability import docs as metrics_page
from infra.observability.catalogue import GUARDS, METRICS, OTHER, STAGES, Label, Metric
from infra.observability.metrics import PREFIX, MeterMisuseError, PrometheusMeter, TallyingMeter
from tests.programs import ROOT, needs

BY_NAME = {metric.name: metric for metric in METRICS}
BASE_UNITS = ("_seconds", "_ratio", "_bytes", "_records", "_rows", "_per_second")
# Numbers without a unit: counts of things that exist, and a scaled loss.
COUNTS = {"replicas", "replicas_wanted", "replicas_ready"}
UNITLESS = {
    "replicas_held",
    "replicas_needed",
    *COUNTS,
    "p_miss",
    "miss_share",
    "miss_share_allowed",
    "forecast_pinball",
    "source_silent",
    "acting",
    "incomplete_sources",
}


def scrape(meter: PrometheusMeter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the text exposition, by name and sorted labels."""
    body, _ = meter.exposition()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_prometheus(body.decode())
        for sample in family.samples
    }


def some_labels(metric: Metric) -> dict[str, str]:
    return {label.name: label.values[0] if label.values else "prod/a" for label in metric.labels}


def report(meter: PrometheusMeter, metric: Metric, value: float = 1.0) -> None:
    method = {"counter": meter.count, "histogram": meter.observe}.get(metric.kind, meter.gauge)
    method(metric.name, value, **some_labels(metric))


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_follow_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert not metric.name.startswith(PREFIX)
    assert "percent" not in metric.name
    assert not re.search(r"_(ms|millis|minutes|hours|perc|count|sum|bucket|created)(_|$)", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_info") == (metric.kind == "info")
    if metric.kind in ("gauge", "histogram"):
        assert metric.name.endswith(BASE_UNITS) or metric.name in UNITLESS
    assert metric.help.endswith(".")
    assert len(metric.help) < 120


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_labels_are_bounded(metric: Metric) -> None:
    names = [label.name for label in metric.labels]
    assert len(set(names)) == len(names)
    for label in metric.labels:
        assert (label.domain in ("fixed", "open")) == bool(label.values)
        assert len(set(label.values)) == len(label.values)
        assert label.domain != "text" or metric.kind == "info"
        assert label.domain != "workload" or metric.kind == "gauge"
    assert math.prod(len(label.values) + 1 for label in metric.labels) <= 250


def test_names_are_unique_and_buckets_ascend() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        assert "le" not in {label.name for label in metric.labels}


def test_every_metric_reaches_the_exposition() -> None:
    meter = PrometheusMeter(strict=True)
    for metric in METRICS:
        report(meter, metric)
    names = {name for name, _ in scrape(meter)}
    for metric in METRICS:
        shown = PREFIX + metric.name
        assert shown in names or f"{shown}_bucket" in names, metric.name
    assert "process_resident_memory_bytes" in names


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"])
def test_exposition_parses_and_has_no_created_series(accept: str) -> None:
    meter = PrometheusMeter(strict=True)
    for metric in METRICS:
        report(meter, metric)
    body, content_type = meter.exposition(accept)
    parse = parse_openmetrics if accept else parse_prometheus
    families = list(parse(body.decode()))
    assert ("openmetrics" in content_type) == bool(accept)
    assert len([f for f in families if f.name.startswith(PREFIX)]) == len(METRICS)
    assert not [s.name for f in families for s in f.samples if s.name.endswith("_created")]


@needs("promtool")
def test_promtool_finds_nothing_to_say() -> None:
    meter = PrometheusMeter(strict=True)
    for metric in METRICS:
        report(meter, metric)
    body, _ = meter.exposition()
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_counters_start_at_zero_and_unknown_gauges_are_not_zero() -> None:
    samples = scrape(PrometheusMeter(strict=True))
    assert samples["harmony_samples_total", (("outcome", "late"),)] == 0
    assert samples["harmony_slots_total", ()] == 0
    unknown = {"harmony_lag_records", "harmony_forecast_pinball", "harmony_forecast_coverage_ratio", "harmony_p_miss"}
    assert not [name for name, _ in samples if name in unknown]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda m: m.count("no_such_total"), "no such metric"),
        (lambda m: m.gauge("slots_total", 1.0), "is a counter"),
        (lambda m: m.count("slots_total", -1.0), "cannot grow by"),
        (lambda m: m.count("slots_total", math.nan), "cannot grow by"),
        (lambda m: m.observe("inference_seconds", math.inf), "cannot observe"),
        (lambda m: m.count("samples_total"), "outcome is missing"),
        (lambda m: m.count("samples_total", outcome="lost"), "is none of"),
        (lambda m: m.count("samples_total", outcome="late", extra="x"), "unknown labels"),
    ],
)
def test_misuse_raises_in_tests_and_is_counted_in_production(call, complaint: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MeterMisuseError, match=complaint):
        call(PrometheusMeter(strict=True))
    meter = PrometheusMeter()
    before = scrape(meter)
    call(meter)
    after = scrape(meter)
    assert after.pop(("harmony_meter_errors_total", ())) == before.pop(("harmony_meter_errors_total", ())) + 1
    ours = [key for key in after if key[0].startswith(PREFIX) and not key[0].endswith("pinball")]
    assert {key: after[key] for key in ours} == {key: before[key] for key in ours}


@given(st.lists(st.text(max_size=30), max_size=40))
@settings(max_examples=20)
def test_no_reason_can_grow_the_number_of_series(reasons: list[str]) -> None:
    meter = PrometheusMeter(strict=True)
    for reason in reasons:
        meter.count("decisions_total", action="hold", reason=reason)
        meter.count("dead_letters_total", code=reason)
    label = next(label for label in BY_NAME["decisions_total"].labels if label.name == "reason")
    shown = {k[1]: v for k, v in scrape(meter).items() if k[0] == "harmony_decisions_total"}
    assert {dict(labels)["reason"] for labels in shown} <= {*label.values, OTHER}
    assert sum(shown.values()) == len(reasons)


@given(st.lists(st.text(min_size=1, max_size=12), max_size=60), st.integers(1, 5))
@settings(max_examples=20)
def test_workload_gauges_are_capped_and_the_first_ones_stay(workloads: list[str], cap: int) -> None:
    meter = PrometheusMeter(strict=True, max_workload_series=cap)
    for i, workload in enumerate(workloads):
        meter.gauge("replicas_wanted", float(i), workload=workload)
    kept = list(dict.fromkeys(workloads))[:cap]
    newest = {workload: float(i) for i, workload in enumerate(workloads) if workload in kept}
    samples = scrape(meter)
    shown = {dict(labels)["workload"]: v for (name, labels), v in samples.items() if name == "harmony_replicas_wanted"}
    assert shown == newest
    dropped = sum(workload not in kept for workload in workloads)
    assert samples["harmony_workload_gauges_dropped_total", ()] == dropped


def test_nan_removes_a_series_and_a_retired_workload_makes_room() -> None:
    meter = PrometheusMeter(strict=True, max_workload_series=1)
    meter.gauge("p_miss", 0.2, workload="a")
    meter.gauge("p_miss", math.nan, workload="a")
    assert not [k for k in scrape(meter) if k[0] == "harmony_p_miss"]
    meter.gauge("replicas_ready", 3.0, workload="a")
    meter.gauge("replicas_ready", 4.0, workload="b")
    meter.forget_workload("a")
    meter.gauge("replicas_ready", 4.0, workload="b")
    assert {k[1]: v for k, v in scrape(meter).items() if k[0] == "harmony_replicas_ready"} == {
        (("workload", "b"),): 4.0
    }


def test_an_info_metric_keeps_only_its_newest_series() -> None:
    meter = PrometheusMeter(strict=True)
    for fingerprint in ("one", "two", "x" * 1_000):
        meter.gauge("model_info", 1.0, fingerprint=fingerprint)
    shown = [k[1] for k in scrape(meter) if k[0] == "harmony_model_info"]
    assert shown == [(("fingerprint", "x" * 200),)]


def test_hostile_workload_ids_survive_the_text_format() -> None:
    meter = PrometheusMeter(strict=True)
    hostile = ['a"b', "a\\b", "a\nb", "<script>", "ü\u202e", "{}", ""]
    for i, workload in enumerate(hostile):
        meter.gauge("replicas_ready", float(i), workload=workload)
    shown = {dict(k[1]).get("workload", ""): v for k, v in scrape(meter).items() if k[0] == "harmony_replicas_ready"}
    assert shown == {workload: float(i) for i, workload in enumerate(hostile)}


def test_a_missing_label_with_a_default_takes_it() -> None:
    work = Metric("work_seconds", "histogram", "Work.", (Label("stage", ("a", "all"), default="all"),), (1.0,))
    meter = PrometheusMeter(strict=True, metrics=(work, *(m for m in METRICS if m.name == "meter_errors_total")))
    meter.observe("work_seconds", 1.0)
    assert scrape(meter)["harmony_work_seconds_count", (("stage", "all"),)] == 1


def meter_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of a meter in the source whose metric name is written out."""
    for package in ("streams", "agents", "model", "infra"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = ast.unparse(node.func.value)
                    if node.func.attr in ("count", "gauge", "observe") and owner.endswith("meter") and node.args:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", node.func.attr, node


def test_every_measurement_in_the_source_is_declared() -> None:
    calls = list(meter_calls())
    assert calls
    for where, method, call in calls:
        name = ast.literal_eval(call.args[0])
        assert name in BY_NAME, f"{where}: {name} is not declared"
        metric = BY_NAME[name]
        assert {"counter": "count", "histogram": "observe"}.get(metric.kind, "gauge") == method, where
        given = {k.arg: k.value for k in call.keywords if k.arg not in (None, "value")}
        needed = {label.name for label in metric.labels if label.default is None}
        assert needed <= given.keys() <= {label.name for label in metric.labels}, where
        for label in metric.labels:
            value = given.get(label.name)
            if isinstance(value, ast.Constant):
                assert _shown(label, str(value.value)) != OTHER, f"{where}: {value.value!r} would be shown as other"


def test_every_gauge_of_workloads_in_the_source_is_declared() -> None:
    """Those that are told of together."""
    told = []
    for path in sorted((ROOT / "infra").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            method = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if method == "workload_gauges":
                told += [ast.literal_eval(key) for key in node.args[1].keys]
    assert told
    for name in told:
        assert BY_NAME[name].kind == "gauge", name
        assert [label.name for label in BY_NAME[name].labels] == ["workload"], name


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([1.0, math.nan])), max_size=12), st.integers(0, 3))
def test_gauges_told_together_are_those_told_one_by_one(told: list[tuple[str, float]], most: int) -> None:
    together, apart = (PrometheusMeter(strict=True, max_workload_series=most) for _ in range(2))
    for workload, value in told:
        gauges = {"replicas_ready": value, "acting": 1.0}
        together.workload_gauges(workload, gauges)
        for name, number in gauges.items():
            apart.gauge(name, number, workload=workload)
    assert _of_workloads(scrape(together)) == _of_workloads(scrape(apart))


def _of_workloads(samples: dict[Any, float]) -> dict[Any, float]:
    return {
        k: v for k, v in samples.items() if k[0] == "harmony_workload_gauges_dropped_total" or "workload" in dict(k[1])
    }


def test_counts_added_up_are_those_told_one_by_one() -> None:
    together, apart, tally = PrometheusMeter(strict=True), PrometheusMeter(strict=True), TallyingMeter()
    for n in range(7):
        for meter in (apart, tally):
            meter.count("replica_seconds_total", n * 15.0, mode="act", part=("held", "wanted")[n % 2])
            meter.count("commands_total")
    together.count_all(tally.counts)
    names = ("harmony_replica_seconds_total", "harmony_commands_total")
    first, second = ({k: v for k, v in scrape(m).items() if k[0] in names} for m in (together, apart))
    assert first == second
    assert sum(first.values()) == 7 + 15.0 * 21


def _shown(label: Label, value: str) -> str:
    if label.domain in ("workload", "text"):
        return value
    return value if value in label.values else OTHER


def test_the_guards_of_the_chain_have_their_own_label_value() -> None:
    own_words = {"sanity", "refused"}  # these two speak with the name of what they found
    names = {guard.__name__ for guard in (*GATES, *CHAIN)}
    assert names - own_words <= set(GUARDS)


def test_stages_are_those_of_the_design() -> None:
    assert STAGES == ("ingest", "forecast", "decide", "controls")


def test_the_page_of_metrics_is_current() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "python -m infra.observability.docs"
