"""`harmony init`: what it detects, what it asks, and that what it writes loads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import yaml

from infra.cli import app as cli
from infra.console.errors import HarmonyError
from infra.operate.detect import detect
from infra.settings.load import load_settings
from tests.infra.collect.exporter import answering
from tests.infra.collect.samples import VLLM
from tests.infra.collect.test_prometheus_api import PATH, matrix, series

AT_S = 1_763_636_400.0


def engine(name: str, pod: str, every_s: float, **labels: str) -> dict[str, object]:
    samples = [(AT_S + k * every_s, "3") for k in range(3)]
    where = {"namespace": "prod", "pod": pod, "instance": f"{pod}:8000", **labels}
    return series(name, *samples, model_name="chat", **where)


def prometheus(every_s: float = 15.0) -> str:
    """Two engines of one workload, with two GPUs each."""
    pods = ("chat-7d9f8b6c5d-x2zqp", "chat-7d9f8b6c5d-k4wln")
    running = [engine("vllm:num_requests_running", pod, every_s) for pod in pods]
    power = [
        engine("DCGM_FI_DEV_POWER_USAGE", pod, every_s, gpu=str(gpu), UUID=f"GPU-{pod}-{gpu}")
        for pod in pods
        for gpu in range(2)
    ]
    return matrix(*running, *power)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def init(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["harmony", "init", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_a_prometheus_servers_workloads_are_found_with_engines_and_devices() -> None:
    with answering() as server:
        server.pages[PATH] = prometheus()
        found = detect(server.address)
    assert found.kind == "prometheus"
    assert found.interval_s == 15.0
    (workload,) = found.workloads
    assert (workload.id, workload.replicas, workload.devices, workload.gpus_per_replica) == ("prod/chat", 2, 4, 2)


def test_an_exporter_is_told_from_a_server() -> None:
    with answering(metrics=VLLM) as exporter:
        found = detect(exporter.address)
    assert found.kind == "exporter"
    assert [w.id for w in found.workloads] == ["acme/chat-7b"]
    assert found.interval_s is None


@pytest.mark.parametrize(
    ("pages", "sentence"),
    [({}, "is neither a Prometheus server"), ({"metrics": "up 1\n"}, "none of its series is of a known engine")],
)
def test_what_is_neither_gets_a_sentence(pages: dict[str, str], sentence: str) -> None:
    with answering(**pages) as server, pytest.raises(HarmonyError, match=sentence) as stop:
        detect(server.address)
    assert stop.value.exit_code == 2


def test_what_was_found_is_written_and_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with answering() as server:
        server.pages[PATH] = prometheus(every_s=60.0)
        arguments = ("--detect", server.url, "--yes", "--slo-ttft", "3", "--brokers", "kafka:9092")
        assert init(monkeypatch, *arguments) == 0
    settings = load_settings(tmp_path / "harmony.yaml", None, {})
    (workload,) = settings.policy.workloads
    assert (workload.id, workload.mode, workload.gpus_per_replica, workload.max_replicas) == (
        "prod/chat",
        "observe",
        2,
        4,
    )
    assert workload.slo.ttft_s == 3.0
    assert (settings.brokers, settings.step_s) == ("kafka:9092", 60.0)
    told = capsys.readouterr().err
    assert "1 workloads: prod/chat" in told
    assert f"harmony collect prometheus --server {server.url}" in told
    text = (tmp_path / "harmony.yaml").read_text()
    assert '# target: {apiVersion: apps/v1, kind: Deployment, namespace: "prod", name: "chat"}' in text
    # The guess, taken as it is, is a target that `act` accepts.
    act = text.replace("mode: observe", "mode: act").replace("    # target", "    target")
    (tmp_path / "act.yaml").write_text(act)
    assert load_settings(tmp_path / "act.yaml", None, {}).policy.workloads[0].target.name == "chat"


def test_it_asks_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with answering() as server:
        server.pages[PATH] = prometheus()
        monkeypatch.setattr(sys, "stdin", Terminal(f"\n{server.url}\n1.5\n\n0.995\n"))
        assert init(monkeypatch) == 0
    (workload,) = yaml.safe_load((tmp_path / "harmony.yaml").read_text())["workloads"]
    assert workload["slo"] == {"ttft_s": 1.5, "tpot_s": 0.2, "objective": 0.995}


def test_nothing_is_asked_without_a_terminal_and_nothing_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert init(monkeypatch) == 0
    before = (tmp_path / "harmony.yaml").read_text()
    assert "prod/llm/chat-70b" in before
    assert init(monkeypatch) == 2
    assert "--force" in capsys.readouterr().err
    assert init(monkeypatch, "--slo-ttft", "0", "--force") == 2
    assert (tmp_path / "harmony.yaml").read_text() == before


def test_names_that_yaml_would_misread_are_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd = VLLM.replace("acme/chat-7b", "1e3: [x")
    with answering(metrics=odd) as exporter:
        assert init(monkeypatch, "--detect", exporter.address) == 0
    assert len(load_settings(tmp_path / "harmony.yaml", None, {}).policy.workloads) == 1
