"""The page of real workers on a real broker: what it reads, across a restart, and with roles apart."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from infra.kafka.embedded import EmbeddedKafka
from tests.integration.pipeline import Pipeline, stop, workload_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def fetch(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=10) as response:  # noqa: S310 - our own loopback page
        return json.load(response)


def url_of(worker: subprocess.Popen[bytes]) -> str:
    return str(worker.metrics_url)  # type: ignore[attr-defined]


def eventually(read: Callable[[], Any], good: Callable[[Any], bool], timeout_s: float = 180.0) -> Any:
    deadline_s = monotonic() + timeout_s
    told: Any = None
    while monotonic() < deadline_s:
        try:
            told = read()
            if good(told):
                return told
        except (urllib.error.URLError, OSError, KeyError, ValueError) as error:
            told = error
        sleep(0.2)
    raise AssertionError(f"not within {timeout_s:g} s; last seen: {told}")


def test_a_page_reads_the_topics_links_other_roles_and_finds_its_history_after_a_restart(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(3))
    with ExitStack() as stack:
        stack.callback(pipeline.producer.close)

        def start(name: str, role: str) -> subprocess.Popen[bytes]:
            process = pipeline.start_worker(name, role)
            stack.callback(stop, process)
            return process

        ingest = start("ingests", "ingest")
        urls = {"ingests": url_of(ingest), "decides": url_of(start("decides", "forecast,decide"))}
        origin_ts_ms = pipeline.publish_slots(24)

        def caught_up(url: str) -> Any:
            return eventually(
                lambda: fetch(url, "/api/fleet"),
                lambda fleet: (
                    [row["origin_ts_ms"] for row in fleet["rows"]] == [origin_ts_ms] * 3
                    and fleet["worker"]["state"] == "live"
                ),
            )

        # Both show the fleet, whoever decided; each names itself and links the other.
        told = {instance: caught_up(url) for instance, url in urls.items()}
        assert told["ingests"]["worker"]["role"] == "ingest"
        # Forecasts are published after the decisions, and each page reads them when it does.
        eventually(lambda: [fetch(url, "/api/fleet")["rows"] for url in urls.values()], lambda rows: rows[0] == rows[1])
        linked = eventually(lambda: fetch(urls["ingests"], "/api/fleet")["worker"]["peers"], bool)
        assert linked == [{"url": urls["decides"], "role": "forecast,decide", "instance": "decides"}]

        path = "/api/workloads/" + told["ingests"]["rows"][0]["id"]
        before = eventually(
            lambda: fetch(urls["ingests"], path),
            lambda view: view["fan"] is not None and view["fan"]["ts_ms"][0] > origin_ts_ms,
        )
        assert len(before["history"]["ts_ms"]) == 24
        assert before["slo"]["attainment"] == 1

        ingest.kill()
        ingest.wait()
        again = url_of(start("ingests", "ingest"))
        caught_up(again)
        kept = before.keys() - {"boot", "version"}
        after = eventually(lambda: fetch(again, path), lambda view: all(view[name] == before[name] for name in kept))
        assert after["boot"] != before["boot"]
        assert after.keys() == before.keys()
