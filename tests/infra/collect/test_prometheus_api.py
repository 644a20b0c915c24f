"""Asking a Prometheus server: what is asked, what is new, what goes wrong. The real server is in tests/integration."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest

from infra.collect.sources.prometheus import PrometheusApi, PrometheusError, PrometheusSource
from infra.console.errors import HarmonyError
from infra.console.web import HttpClient
from tests.infra.collect.exporter import Answers, answering

PATH = "/api/v1/query"
SUCCESS = '{"status":"success","data":{"result":[%s]}}'


def series(name: str, *samples: tuple[float, str], **labels: str) -> dict[str, object]:
    return {"metric": {"__name__": name, **labels}, "values": [list(s) for s in samples]}


def matrix(*found: dict[str, object]) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(found)}})


def asked(answers: Answers) -> list[str]:
    return [parse_qs(body)["query"][0] for _, _, body, _ in answers.asked]


def test_samples_carry_the_time_of_their_scrape() -> None:
    with answering() as server:
        server.pages[PATH] = matrix(series("a", (1763636415.25, "4"), (1763636420.25, "NaN"), instance="h"))
        points = PrometheusApi(server.url, HttpClient(5.0)).samples(["a"], 30)
    assert [p.ts_ms for p in points] == [1763636415250, 1763636420250]
    assert {(p.name, p.labels["instance"]) for p in points} == {("a", "h")}
    assert points[0].value == 4.0


@pytest.mark.parametrize("selector", ['namespace="prod"', '{namespace="prod"}', ' {namespace="prod",} '])
def test_the_query_asks_for_a_range_of_all_names_with_the_selector(selector: str) -> None:
    with answering() as server:
        server.pages[PATH] = matrix()
        PrometheusApi(server.url + "/", HttpClient(5.0), selector).samples(["vllm:a_total", "b.c"], 12)
    assert asked(server) == ['{__name__=~"vllm:a_total|b\\\\.c",namespace="prod"}[12s]']


def test_many_names_are_asked_for_in_portions() -> None:
    with answering() as server:
        server.pages[PATH] = matrix(series("x", (1.0, "1")))
        points = PrometheusApi(server.url, HttpClient(5.0)).samples([f"n{k}" for k in range(130)], 12)
    assert len(asked(server)) == 3
    assert len(points) == 3


def test_only_what_is_new_comes_and_the_window_covers_the_time_since() -> None:
    clock = [1000.0]
    with answering() as server:
        source = PrometheusSource(PrometheusApi(server.url, HttpClient(5.0)), ["a"], server.url, lambda: clock[0])
        server.pages[PATH] = matrix(series("a", (1.0, "1"), (2.0, "2"), i="x"))
        assert [p.value for p in source().points] == [1.0, 2.0]
        clock[0] += 5
        server.pages[PATH] = matrix(series("a", (2.0, "2"), (3.0, "3"), i="x"), series("a", (1.5, "9"), i="y"))
        assert [p.value for p in source().points] == [3.0, 9.0]
        clock[0] += 60
        server.status = 503
        assert source().failures[server.url].startswith("HTTP 503 Service Unavailable")
        clock[0] += 60
        server.status = 200
        server.pages[PATH] = matrix(series("a", (3.0, "3"), (4.0, "4"), i="x"))
        assert [p.value for p in source().points] == [4.0]
        clock[0] += 86_400
        source()
    assert [int(query.rpartition("[")[2].removesuffix("s]")) for query in asked(server)] == [71, 16, 71, 131, 300]


@pytest.mark.parametrize(
    ("status", "page", "words"),
    [
        (400, '{"status":"error","error":"parse error: unexpected"}', "HTTP 400 Bad Request: parse error: unexpected"),
        (200, '{"status":"error","error":"too many samples"}', "too many samples"),
        (200, "<html>", "not that of a Prometheus"),
        (200, "[]", "not that of a Prometheus"),
        (200, "[" * 100_000, "not that of a Prometheus"),
        (200, SUCCESS % '{"metric":{"__name__":"a"},"values":[[1e400,"1"]]}', "not that of a Prometheus"),
        (200, SUCCESS % '{"metric":{"__name__":"a","x":[1]},"values":[[1,"1"]]}', "not that of a Prometheus"),
        (200, SUCCESS % '{"metric":{"__name__":1},"values":[[1,"1"]]}', "not that of a Prometheus"),
        (200, '{"status":"error","error":"\\u001b[2J"}', r"\x1b[2J"),
        (200, '{"status":"success","data":{"result":[{"metric":{}}]}}', ""),
        (200, '{"status":"success","data":{"result":[{"metric":{},"values":[[1,"x"]]}]}}', "not that of a Prometheus"),
    ],
)
def test_refusals_and_other_servers(status: int, page: str, words: str) -> None:
    with answering() as server:
        server.pages[PATH], server.status = page, status
        api = PrometheusApi(server.url, HttpClient(5.0))
        if not words:
            assert api.samples(["a"], 5) == []
            return
        with pytest.raises(PrometheusError) as caught:
            api.samples(["a"], 5)
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(HarmonyError, match="is no address of a Prometheus server"):
        PrometheusApi(url, HttpClient(5.0))
