"""A real Prometheus scrapes real workers of a real loop: nothing to complain of, and no panel is empty."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import pytest

from infra.kafka.embedded import EmbeddedKafka
from infra.observability.catalogue import METRICS
from infra.observability.dashboards.spec import RATE
from infra.observability.metrics import PREFIX
from tests.infra.observability.places import DASHBOARD_FILES, RULES
from tests.infra.observability.prometheus_server import Prometheus, prometheus
from tests.integration.pipeline import STREAM, Pipeline, workload_names
from tests.programs import needs

pytestmark = [needs("prometheus"), needs("promtool"), pytest.mark.slow, pytest.mark.timeout(1500)]
# Above this many observed steps the ridge forecaster answers, so that it is scored beside seasonal naive.
SLOTS = 80


@dataclass(frozen=True)
class Watched:
    server: Prometheus
    url: str


@pytest.fixture(scope="module")
def watched(broker: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A loop that runs while it is scraped: slots, then poison and late samples, then slots again."""
    home = tmp_path_factory.mktemp("monitoring")
    long_context = replace(STREAM, context_steps=96)
    pipeline = Pipeline(broker.bootstrap, "monitoring-test.", home, workload_names(3), stream=long_context)
    with pipeline.worker() as worker:
        url: str = worker.metrics_url  # type: ignore[attr-defined]
        with prometheus(home / "prometheus", [url.removeprefix("http://")]) as server:
            pipeline.wait_for_decisions(pipeline.publish_slots(8), timeout_s=400)
            for bad in (b"{bad", b"[]", b'{"v":9}'):
                pipeline.producer.send(pipeline.topics.telemetry_requests, key=b"w", value=bad)
            for _ in range(8):
                origin = pipeline.publish_slots((SLOTS - 8) // 8)
                pipeline.wait_for_decisions(origin, timeout_s=400)
            newest = monotonic()
            server.until("three scrapes after the last slot", lambda: monotonic() > newest + 3)
            yield Watched(server, url)


def test_promtool_has_nothing_to_say_of_a_real_worker(watched: Watched) -> None:
    body = urllib.request.urlopen(f"{watched.url}/metrics", timeout=10).read()  # noqa: S310
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)
    print(f"promtool check metrics: exit code {done.returncode}, {len(body.splitlines())} lines, {done.stderr!r}")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_declared_metric_is_scraped_with_its_type(watched: Watched) -> None:
    known = {name: entries[0]["type"] for name, entries in watched.server.get("metadata").items()}
    for metric in METRICS:
        name = PREFIX + metric.name
        # In OpenMetrics, which Prometheus asks for, a counter's family goes without its suffix.
        assert known.get(name.removesuffix("_total")) == {"info": "gauge"}.get(metric.kind, metric.kind), name
    assert watched.server.query('up{job="harmony"}')[0]["value"][1] == "1"
    assert watched.server.query("harmony_meter_errors_total")[0]["value"][1] == "0"
    assert watched.server.query("sum(harmony_dead_letters_total)")[0]["value"][1] == "3"


@pytest.mark.parametrize("path", sorted(DASHBOARD_FILES.glob("*.json")), ids=lambda p: p.stem)
def test_no_panel_is_empty(watched: Watched, path: Path) -> None:
    empty = []
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace(RATE, "5m").replace("$workload", ".*").replace("$fleet", ".*")
            series = watched.server.query(expr)
            finite = [s for s in series if s["value"][1] not in ("NaN", "+Inf")]
            print(f"{path.stem} | {panel['title']} | {len(series)} series | {expr}")
            if not finite:
                empty.append((panel["title"], expr, series))
    assert not empty


def test_rules_are_evaluated_and_recorded_series_exist(watched: Watched) -> None:
    groups = watched.server.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(groups) == len(list(RULES.glob("*.yml")))
    assert {(r["name"], r["health"], r.get("lastError", "")) for r in rules} == {(r["name"], "ok", "") for r in rules}
    for rule in rules:
        if rule["type"] == "recording":
            assert watched.server.query(rule["name"]), rule["name"]
    firing = {a["labels"]["alertname"] for a in watched.server.get("alerts")["alerts"] if a["state"] == "firing"}
    assert firing <= {"HarmonyMissRisk", "HarmonyDeadLetters", "HarmonyKafkaErrors", "HarmonySourceSilent"}, firing


def test_sources_that_fall_silent_show_in_the_metric_and_in_readyz(watched: Watched) -> None:
    """Nobody ticks and nobody publishes any more."""
    silent = "harmony_source_silent == 1"
    watched.server.until("both sources are silent", lambda: len(watched.server.query(silent)) == 2, timeout_s=400)
    checks = json.loads(urllib.request.urlopen(f"{watched.url}/readyz", timeout=10).read())["checks"]  # noqa: S310
    assert not checks["sources"]["ok"]
    assert not checks["sources"]["required"]
    assert "requests: no page or tick in partitions [0, 1]" in checks["sources"]["detail"]
