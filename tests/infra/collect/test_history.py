"""The past of a real Prometheus and of files, as records in the order of their time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from infra.cli.app import app
from infra.console.errors import HarmonyError
from tests.infra.observability.past_server import Engine, write_past
from tests.infra.observability.prometheus_server import Prometheus, prometheus
from tests.programs import needs

STEP_S = 60
HOURS = 6
GAP_H = (2.0, 3.0)  # ago


@pytest.fixture(scope="module")
def begun_s() -> int:
    return int(time()) // STEP_S * STEP_S - HOURS * 3_600


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, begun_s: int) -> Iterator[Prometheus]:
    """Two engines scraped once a minute for six hours, but for one hour."""
    home = tmp_path_factory.mktemp("past")
    engines = [Engine("acme/chat", f"r{n}:8000", begun_s) for n in range(2)]
    end_s = begun_s + HOURS * 3_600
    write_past(home, engines, begun_s, end_s, STEP_S, lambda at_s: not GAP_H[0] < (end_s - at_s) / 3_600 <= GAP_H[1])
    with prometheus(home, []) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HARMONY_CONFIG", "HARMONY_BROKERS", "TZ"):
        monkeypatch.delenv(name, raising=False)


def collect(tmp_path: Path, *arguments: str, step_s: int = STEP_S) -> Result:
    (tmp_path / "harmony.yaml").write_text(f"step_s: {step_s}\n")
    return CliRunner().invoke(app, ["collect", *arguments, "--dry-run", "--config", str(tmp_path / "harmony.yaml")])


def printed(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def refusal(result: Result) -> str:
    assert isinstance(result.exception, HarmonyError), result.output
    assert result.exception.exit_code == 2
    return result.exception.message


@needs("prometheus", "promtool")
def test_the_past_comes_in_order_of_time_without_gap_or_double(
    server: Prometheus, begun_s: int, tmp_path: Path
) -> None:
    result = collect(
        tmp_path, "prometheus", "--server", server.url, "--history", "7d", "--once", "--count-replicas"
    )  # fmt: skip
    lines = printed(result)
    assert "The server's history begins at" in result.stderr
    assert "telemetry of now follows" in result.stderr
    newest: dict[str, int] = {}
    taken: list[tuple[str, int]] = []
    facts: list[int] = []
    for line in lines:
        topic, value = line["topic"], line["value"]
        times = value["ts_ms"] if isinstance(value["ts_ms"], list) else [value["ts_ms"]]
        # Nothing lies in a step that a record before it has closed.
        assert min(times) // 60_000 >= newest.get(topic, 0) // 60_000 - 1, line
        newest[topic] = max(*times, newest.get(topic, 0))
        if value["kind"] == "requests":
            assert len({t // (STEP_S * 1000) for t in times}) == 1
            taken += zip(value["source"], times, strict=True)
        elif value["kind"] == "fleet":
            facts.append(value["values"]["replicas_ready"])
    assert len(taken) == len(set(taken))
    held = server.query("vllm:generation_tokens_total[7d]")
    expected = {round(float(at) * 1000) for series in held for at, _ in series["values"]}
    assert len(expected) == (HOURS - 1) * 60
    for source in ("r0:8000", "r1:8000"):
        assert sorted(t for name, t in taken if name == source) == sorted(expected)
    assert set(facts) == {2}
    ticks = [line for line in lines if line["value"]["kind"] == "tick"]
    assert {line["topic"] for line in ticks} == {"harmony.telemetry.requests", "harmony.telemetry.gpu"}


@needs("prometheus", "promtool")
def test_samples_further_apart_than_the_steps_are_refused_before_anything_is_published(
    server: Prometheus, tmp_path: Path
) -> None:
    result = collect(tmp_path, "prometheus", "--server", server.url, "--history", "6h", "--once", step_s=15)
    assert "samples of the past lie 60 s apart and a step lasts 15 s" in refusal(result)
    assert "step_s: 60" in refusal(result)
    assert not [line for line in result.stdout.splitlines() if '"requests"' in line and '"tick"' not in line]


@needs("prometheus", "promtool")
def test_a_server_that_holds_nothing_is_no_fault(server: Prometheus, tmp_path: Path) -> None:
    result = collect(
        tmp_path, "prometheus", "--server", server.url, "--history", "1d", "--once", "--selector", 'job="no"'
    )  # fmt: skip
    assert result.exit_code == 0
    assert "holds nothing of these series" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--server", "http://127.0.0.1:9", "--history", "seven"), "--history"),
        (("--server", "http://127.0.0.1:9", "--history", "90d"), "at most 31d"),
        (("--scrape", "127.0.0.1:9", "--history", "7d"), "say --server URL"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(arguments: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(collect(tmp_path, "prometheus", "--once", *arguments))


@needs("prometheus", "promtool")
def test_a_server_that_refuses_large_answers_is_asked_in_smaller_portions(tmp_path: Path, begun_s: int) -> None:
    end_s = begun_s + HOURS * 3_600
    write_past(tmp_path / "own", [Engine("acme/chat", "r0:8000", begun_s)], end_s - 7_200, end_s, STEP_S)
    with prometheus(tmp_path / "own", [], flags=("--query.max-samples=600",)) as server:
        result = collect(tmp_path, "prometheus", "--server", server.url, "--history", "2h", "--once")
    values = [line["value"] for line in printed(result) if line["value"]["kind"] == "requests"]
    assert len({t for value in values for t in value["ts_ms"]}) >= 118


def test_files_are_published_in_the_order_of_time_as_the_past(tmp_path: Path) -> None:
    """A dump per engine, the second older than the first, with a sample of the future."""
    now_s = int(time())
    engine = Engine("acme/chat", "r0", now_s - 7_200)

    def export(name: str, times_s: list[int]) -> None:
        series: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for at_s in times_s:
            for metric, labels, value in engine.page(at_s, ""):
                series.setdefault((metric, labels), []).append((at_s * 1000, value))
        lines = []
        for (metric, labels), values in series.items():
            pairs = dict(pair.split("=", 1) for pair in labels.split(","))
            metric_labels = {"__name__": metric, "instance": name, **{k: json.loads(v) for k, v in pairs.items()}}
            lines.append(
                json.dumps(
                    {"metric": metric_labels, "values": [v for _, v in values], "timestamps": [t for t, _ in values]}
                )
            )
        (tmp_path / f"{name}.json").write_text("\n".join(lines) + "\n")

    export("b", [now_s - 600 + 60 * k for k in range(8)] + [now_s + 3_600])
    export("a", [now_s - 6_000 + 60 * k for k in range(40)])
    result = collect(tmp_path, "file", str(tmp_path / "b.json"), str(tmp_path / "a.json"), "--history")
    lines = printed(result)
    times = [max(v["ts_ms"]) if isinstance(v["ts_ms"], list) else v["ts_ms"] for v in (line["value"] for line in lines)]
    sampled = [t for t, line in zip(times, lines, strict=True) if line["value"]["kind"] == "requests"]
    assert sampled == sorted(sampled)
    assert len(sampled) == 48
    assert max(times) <= time() * 1000
    assert "in the future" in result.stderr
