"""A fleet that starts with its past: from a real Prometheus through a real broker into a worker's windows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from time import monotonic, time

import msgspec
import pytest
import yaml

from agents.records import Decision
from infra.console.host import free_port
from infra.demo.supervisor import metric, worker_command
from infra.kafka.embedded import EmbeddedKafka
from streams.windows.coarse import COARSE_STEP_MS, decode_coarse
from tests.infra.collect.exporter import answering
from tests.infra.observability.past_server import Engine, write_past
from tests.infra.observability.prometheus_server import prometheus
from tests.integration.collect_place import Place
from tests.integration.pipeline import stop
from tests.programs import needs

pytestmark = pytest.mark.timeout(900)
STEP_S = 60
HOURS = 24
WORKLOAD = "acme/chat"


@needs("prometheus", "promtool")
def test_the_first_decision_that_may_act_has_seen_the_past(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    place = Place(broker.bootstrap, topic_prefix, tmp_path)
    settings = yaml.safe_load(place.config.read_text())
    place.config.write_text(yaml.safe_dump(settings | {"step_s": STEP_S}))
    end_s = int(time()) // STEP_S * STEP_S
    start_s = end_s - HOURS * 3_600
    engines = [Engine(WORKLOAD, f"r{n}:8000", start_s) for n in range(2)]
    home = tmp_path / "prometheus"
    write_past(home, engines, start_s, end_s, STEP_S)

    def page(_: str) -> str:
        rows = (row for e in engines for row in e.page(time(), f',instance="{e.instance}"'))
        return "".join(f"{name}{{{labels}}} {value:g}\n" for name, labels, value in rows)

    environment = {**os.environ, "HARMONY_STATE_DIR": str(tmp_path)}
    port = free_port()
    command = worker_command(place.config, "--web-port", str(port), "--end-with-parent")
    with answering() as exporter, (tmp_path / "worker.log").open("ab") as log:
        exporter.pages["/metrics"] = page
        scraped = {"job_name": "harmony", "honor_labels": True, "static_configs": [{"targets": [exporter.address]}]}
        with prometheus(home, [], rule_files=[], scrape_configs=[scraped | {"scrape_interval": "10s"}]) as server:
            worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                # The worker is there first and must not close the slots of what is to come.
                place.until("the worker is ready", lambda: _ready(port))
                collecting = ("collect", "prometheus", "--server", server.url, "--history", "7d", "--count-replicas")
                begun_s = monotonic()
                with place.running(*collecting, "--interval", "5", "--json") as process:
                    decided = _decided(place)
                    while not any(d.reason != "expired" for d in decided):
                        assert monotonic() < begun_s + 600, (len(decided), place.said()[-2000:])
                        assert worker.poll() is None, (tmp_path / "worker.log").read_text()[-2000:]
                        decided = _decided(place)
                    taken_s = monotonic() - begun_s
                    late = metric(f"http://127.0.0.1:{port}", "samples_total", "late")
                    duplicate = metric(f"http://127.0.0.1:{port}", "samples_total", "duplicate")
                    place.stop(process)
            finally:
                stop(worker)
    first = next(d for d in decided if d.reason != "expired")
    print(f"a past of {HOURS} h at {STEP_S} s: the first decision of now came {taken_s:.0f} s after the start")
    assert (late, duplicate) == (0, 0)
    # Every step has one decision, over the end of the past as well.
    origins = [d.origin_ts_ms for d in decided]
    assert origins == list(range(origins[0], origins[-1] + 1, STEP_S * 1000))
    assert (first.origin_ts_ms - start_s * 1000) / 3_600_000 > HOURS - 0.1
    assert first.inputs.observed_ratio == 1.0
    assert first.forecast is not None
    assert first.reason != "warm_up"
    rows = [decode_coarse(r.value) for r in place.log(place.topics.pages_coarse)]
    observed = {r.index for r in rows if WORKLOAD in r.workloads and r.observed[r.workloads.index(WORKLOAD)].any()}
    assert len(observed) >= HOURS * 6 - 1
    assert max(observed) - min(observed) == len(observed) - 1
    assert min(observed) * COARSE_STEP_MS <= start_s * 1000 + 2 * COARSE_STEP_MS


@needs("prometheus", "promtool")
def test_a_history_that_was_broken_off_goes_on_where_it_stopped(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    place = Place(broker.bootstrap, topic_prefix, tmp_path)
    end_s = int(time()) // 15 * 15
    start_s = end_s - 36 * 3_600
    write_past(tmp_path / "prometheus", [Engine(WORKLOAD, "r0:8000", start_s)], start_s, end_s, 15)
    with prometheus(tmp_path / "prometheus", []) as server:
        collecting = ("collect", "prometheus", "--server", server.url, "--history", "7d", "--once")
        with place.running(*collecting) as process:
            place.until("an hour", lambda: len(place.log(place.topics.telemetry_requests)) > 240)
            process.kill()
            process.wait(60)
        broken_off = {ts for _, _, ts in _sampled(place)}
        for said in ("the history goes on from there", "No history is published: the topics hold telemetry up to"):
            with place.running(*collecting) as process:
                assert process.wait(300) == 0, place.said()
            assert said in place.said()
    expected = set(range(start_s * 1000, end_s * 1000, 15_000))
    assert len(broken_off) < len(expected)
    assert {ts for _, _, ts in _sampled(place)} == expected


def _sampled(place: Place) -> set[tuple[str, str, int]]:
    found = set()
    for record in place.log(place.topics.telemetry_requests):
        value = msgspec.json.decode(record.value)
        if value["kind"] == "requests":
            found |= {(value["workload"], s, ts) for s, ts in zip(value["source"], value["ts_ms"], strict=True)}
    return found


def _ready(port: int) -> bool:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        return bool(urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).status == 200)
    except (URLError, OSError):
        return False


def _decided(place: Place) -> list[Decision]:
    found = [msgspec.json.decode(r.value, type=Decision) for r in place.log(place.topics.decisions)]
    return sorted((d for d in found if d.workload == WORKLOAD), key=lambda d: d.origin_ts_ms)
