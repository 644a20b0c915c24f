"""The past from a Prometheus server: a stand-in, and a real one whose days are filled in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import time
from urllib.parse import parse_qs

import numpy as np
import pytest
from typer.testing import CliRunner

from infra.cli.app import app
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader
from infra.collect.mapping.workloads import Identities
from infra.collect.sources.prometheus import PrometheusApi
from infra.console.errors import HarmonyError
from infra.console.web import HttpClient
from infra.lab.backtest.history import RecordedHistory
from infra.lab.backtest.job import fetch
from tests.infra.collect.exporter import answering
from tests.infra.observability.prometheus_server import prometheus
from tests.programs import needs

START_S = 1_763_596_800
NAMES = ("vllm:time_to_first_token_seconds_count", "vllm:num_requests_waiting", "kube_deployment_spec_replicas")


def served(start_s: float) -> Callable[[str], str]:
    """Answers query_range: two engines, each a request a second, and the replicas Kubernetes tells of."""

    def page(body: str) -> str:
        form = {name: values[0] for name, values in parse_qs(body).items()}
        first, last, step = (float(form[name]) for name in ("start", "end", "step"))
        times = np.arange(first, last + 1e-6, step)
        result = []
        for pod in ("chat-0", "chat-1"):
            labels = {"namespace": "prod", "pod": pod, "model_name": "m"}
            counts = [[t, str(t - start_s)] for t in times]
            result.append({"metric": {"__name__": NAMES[0], **labels}, "values": counts})
            result.append({"metric": {"__name__": NAMES[1], **labels}, "values": [[t, "0"] for t in times]})
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})

    return page


def reader() -> Reader:
    return Reader(choose(("vllm", "kube")).profiles, Identities())


def test_portions_join_without_a_seam() -> None:
    said: list[str] = []
    with answering() as server:
        server.pages["/api/v1/query_range"] = served(START_S)
        api = PrometheusApi(server.url, HttpClient(5.0))
        builder = fetch(api, reader(), NAMES, START_S, START_S + 13 * 3600, lambda text, _=None: said.append(text))
    h = builder.history("prod/chat")
    assert (h.start_ms, len(h.rate_rps)) == ((START_S + 60) * 1000, 13 * 60 - 1)
    assert h.rate_rps.tolist() == [2.0] * (13 * 60 - 1)
    assert set(h.replicas.tolist()) == {2.0}
    assert len(server.asked) == 3
    assert said[-1] == "read 100% of the history"


def test_a_server_that_does_not_answer_is_named() -> None:
    with answering() as server, pytest.raises(HarmonyError, match="does not answer: HTTP 404"):
        fetch(PrometheusApi(server.url, HttpClient(5.0)), reader(), NAMES, START_S, START_S + 3600, lambda _: None)


def run(tmp_path: Path, url: str, *more: str) -> str:
    result = CliRunner().invoke(app, ["backtest", "--prometheus", url, "--out", str(tmp_path / "o"), *more])
    assert isinstance(result.exception, HarmonyError), (result.output, result.exception)
    return result.exception.message


def test_nothing_known_and_several_workloads_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = json.dumps({"status": "success", "data": {"result": []}})
    with answering() as server:
        server.pages["/api/v1/query_range"] = empty
        assert "holds no requests of the last 0.1 days" in run(tmp_path, server.url, "--days", "0.1")
        two = served(START_S)
        server.pages["/api/v1/query_range"] = lambda body: two(body).replace('"chat-1"', '"rank-1"')
        said = run(tmp_path, server.url, "--days", "0.1", "--until", str(START_S + 9000))
    assert "there are 2: prod/chat (" in said


def exposition(start_s: int, minutes: int) -> str:
    """OpenMetrics of a vLLM server whose load rises and falls, minute by minute."""
    labels = 'model_name="acme/chat-7b",instance="h:8000"'
    lines: dict[str, list[str]] = {}
    total = 0.0
    for m in range(minutes):
        total += round(60 * (1.5 + np.sin(2 * np.pi * m / 60)))
        at = start_s + 60 * m
        for name, value in {
            "vllm:time_to_first_token_seconds_count": total,
            'vllm:time_to_first_token_seconds_bucket{le="2.0"}': 0.98 * total,
            "vllm:time_to_first_token_seconds_sum": total,
            "vllm:num_requests_waiting": 0,
            "vllm:prompt_tokens_total": 500 * total,
            "vllm:generation_tokens_total": 60 * total,
        }.items():
            base, brace, own = name.partition("{")
            text = f"{base}{{{own.rstrip('}') + ',' if brace else ''}{labels}}} {value} {at}"
            lines.setdefault(base, []).append(text)
    groups = [f"# TYPE {base} unknown\n" + "\n".join(texts) for base, texts in lines.items()]
    return "\n".join(groups) + "\n# EOF\n"


@needs("prometheus")
@needs("promtool")
@pytest.mark.slow
def test_two_hours_of_a_real_server_become_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (extra plots) is not installed")
    monkeypatch.chdir(tmp_path)
    minutes = 120
    start_s = int(time()) // 60 * 60 - 60 * (minutes + 180)
    (tmp_path / "past.txt").write_text(exposition(start_s, minutes))
    home = tmp_path / "prometheus"
    home.mkdir()
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "past.txt"), str(home / "tsdb")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr + made.stdout
    with prometheus(home, []) as server:
        result = CliRunner().invoke(
            app,
            ["backtest", "--prometheus", server.url, "--days", str((minutes + 10) / 1440), "--until",
             str(start_s + 60 * minutes), "--slo-ttft", "2", "--slo-tpot", "0.12", "--lead-time", "90",
             "--max-replicas", "5", "--json", "--out", str(tmp_path / "o")],
        )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    data = json.loads((tmp_path / "o/backtest.json").read_text())
    print(json.dumps(data["lines"], indent=1))
    assert data["workload"] == "acme/chat-7b"
    assert data["hours"] == pytest.approx(minutes / 60, abs=0.1)
    assert data["lines"][0]["attainment"] == pytest.approx(0.98, abs=0.002)
    assert data["missing_ratio"] == 0
    shutil.copy(tmp_path / "o/history.csv", tmp_path / "again.csv")
    from infra.lab.backtest.history import read_history

    kept: RecordedHistory = read_history(tmp_path / "again.csv", "acme/chat-7b")
    wanted = [round(60 * (1.5 + np.sin(2 * np.pi * m / 60))) / 60 for m in range(1, minutes)]
    np.testing.assert_allclose(kept.rate_rps[: len(wanted)], wanted, atol=1e-3)
    np.testing.assert_allclose(kept.prompt_tokens[:50], 500.0, rtol=1e-3)
