"""The demo's exporters: what the shipped profiles read from their page is what the simulated fleet is doing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest

from infra.collect.formats.exposition import read_exposition
from infra.collect.mapping.owners import PodOwners
from infra.demo.exporters import PAST_S, ExportedWorkload, Exporters, exposition, pod_of, server_of
from infra.demo.workloads import demo_workloads
from infra.operate.replica_limits import replica_limits
from streams.records.schema import FleetRecord, SampleRecord
from tests.infra.collect.samples import packed, reader, readings_of


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    workload = ExportedWorkload(demo_workloads(3)[0], 3)
    workload.advance(300.0)
    workload.records()
    workload.advance(315.0)
    return workload.records()


def columns(records: list[dict[str, Any]], kind: str) -> Iterator[tuple[str, dict[str, float], dict[str, Any]]]:
    for record in records:
        if record["kind"] == kind:
            for n, source in enumerate(record["source"]):
                values = {name: cells[n] for name, cells in record["values"].items()}
                yield source, values, {name: cells[n] for name, cells in record.get("hist", {}).items()}


def test_collectors_read_back_what_the_fleet_is_doing(told: list[dict[str, Any]]) -> None:
    read = packed(readings_of(exposition(told), reader()))
    samples = {s.source: s for r in read if isinstance(r, SampleRecord) for s in r.samples}
    devices = {source: sample for source, sample in samples.items() if source.startswith("node-")}
    engines = {source: sample for source, sample in samples.items() if source not in devices}
    assert {r.workload for r in read} == {"demo/chat-70b"}

    expected = list(columns(told, "requests"))
    assert len(engines) == len(expected) > 0
    for source, values, hist in expected:
        seen = engines[pod_of("demo/chat-70b", source)["pod"]]
        for name in ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total",
                     "requests_finished_total", "kv_cache_usage_ratio"):  # fmt: skip
            assert seen.values[name] == values[name], name
        # vLLM counts no arrivals: first tokens and those that wait. What is being prefilled is in neither.
        assert seen.values["requests_started_total"] == hist["ttft_s"]["count"] + values["num_requests_waiting"]
        for name in ("ttft_s", "tpot_s"):
            assert list(seen.hists[name].cumulative) == hist[name]["cumulative"]
            assert (seen.hists[name].count, seen.hists[name].sum) == (hist[name]["count"], hist[name]["sum"])
    expected = list(columns(told, "gpu"))
    assert len(devices) == len(expected) > 0
    for source, values, _ in expected:
        seen = devices[f"node-{source.replace('/gpu-', '/')}"]
        assert seen.values == pytest.approx(values)
    (fleet,) = (r for r in read if isinstance(r, FleetRecord))
    (facts,) = (r["values"] for r in told if r["kind"] == "fleet")
    ((_, seen_facts),) = fleet.facts
    assert (seen_facts.ready, seen_facts.desired) == (facts["replicas_ready"], facts["replicas_desired"])


def test_init_finds_the_limits_of_the_hpa(told: list[dict[str, Any]]) -> None:
    limits = replica_limits(read_exposition(exposition(told), lambda _: True, 0, {}))["demo", "chat-70b"]
    spec = demo_workloads(3)[0].spec
    assert (limits.min, limits.max) == (spec.min_replicas, spec.max_replicas)
    assert limits.source == "the HPA chat-70b"


def test_a_family_stands_together_and_says_its_type(told: list[dict[str, Any]]) -> None:
    lines = exposition(told).splitlines()
    families = [line.split("{")[0] for line in lines if not line.startswith("#")]
    simple = [name for name in families if not name.startswith("vllm:time") and "per_output" not in name]
    assert len([name for name, _ in groupby(simple)]) == len(set(simple))
    assert "# TYPE vllm:prompt_tokens_total counter" in lines
    assert "# TYPE vllm:time_to_first_token_seconds histogram" in lines
    points = read_exposition(exposition(told), lambda _: True, 0, {})
    assert len(points) == len(families)


def test_pods_are_named_as_deployments_name_them() -> None:
    pods = [pod_of("demo/code-13b", f"code-13b-{n}/gpu-1")["pod"] for n in range(800)]
    assert len(set(pods)) == 800
    assert {PodOwners().owner("", pod) for pod in pods} == {"code-13b"}


def test_the_page_is_served_and_goes_on_from_a_past() -> None:
    server = server_of(Exporters(demo_workloads(0)[:1]), 0)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    started = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:prompt_tokens_total"))
    assert started > PAST_S, "the engines have a past"
