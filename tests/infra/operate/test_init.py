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
    assert (workload.id, workload.mode, workload.gpus_per_replica) == ("prod/chat", "observe", 2)
    assert workload.slo.ttft_s == 3.0
    assert (settings.brokers, settings.step_s) == ("kafka:9092", 60.0)
    told = capsys.readouterr().err
    assert "1 workloads: prod/chat" in told
    assert f"harmony collect prometheus --server {server.url}" in told
    text = (tmp_path / "harmony.yaml").read_text()
    assert '# target: {apiVersion: apps/v1, kind: Deployment, namespace: "prod", name: "chat"}' in text
    # The guess, taken as it is, is a target that `act` accepts.
    act = text.replace("mode: observe", "mode: act").replace("    # target", "    target")
    act = act.replace("# replicas: {min: 1, max: }", "replicas: {min: 1, max: 4}")
    (tmp_path / "act.yaml").write_text(act)
    assert load_settings(tmp_path / "act.yaml", None, {}).policy.workloads[0].target.name == "chat"


def test_it_asks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with answering() as server:
        server.pages[PATH] = prometheus()
        # A maximum below the two that run is asked for again.
        monkeypatch.setattr(sys, "stdin", Terminal(f"\n{server.url}\n1.5\n\n0.995\n1\n6\n"))
        assert init(monkeypatch) == 0
    assert "give 2 or more, so that no replica is taken away" in capsys.readouterr().err
    (workload,) = yaml.safe_load((tmp_path / "harmony.yaml").read_text())["workloads"]
    assert workload["replicas"] == {"min": 1, "max": 6}
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


def cluster(*found: tuple[str, float, dict[str, str]]) -> str:
    """The engines of `prometheus`, and series of kube-state-metrics, each of namespace prod."""
    told = [series(name, (AT_S, str(value)), namespace="prod", **labels) for name, value, labels in found]
    return matrix(*told, *(engine("vllm:num_requests_running", f"chat-7d9f8b6c5d-x{k}zqp", 15.0) for k in (2, 4)))


def autoscaler(name: str, low: int, high: int, kind: str = "Deployment") -> list[tuple[str, float, dict[str, str]]]:
    hpa = {"horizontalpodautoscaler": name}
    reference = {"scaletargetref_kind": kind, "scaletargetref_name": "chat", "scaletargetref_api_version": "apps/v1"}
    prefix = "kube_horizontalpodautoscaler_"
    return [
        (f"{prefix}info", 1, hpa | reference),
        (f"{prefix}spec_min_replicas", low, hpa),
        (f"{prefix}spec_max_replicas", high, hpa),
    ]


DEPLOYMENT = ("kube_deployment_spec_replicas", 12.0, {"deployment": "chat"})


@pytest.mark.parametrize(
    ("found", "bounds", "words"),
    [
        (autoscaler("chat", 3, 20), (3, 20), "limits of the HPA chat; 2 run"),
        (autoscaler("keda-hpa-chat-so", 1, 9, "StatefulSet"), (1, 9), "limits of KEDA's chat-so; 2 run"),
        # More are to run than the autoscaler allows: none of them is taken away.
        ([*autoscaler("chat", 3, 4), DEPLOYMENT], (3, 12), "limits of the HPA chat; 12 run"),
        ([DEPLOYMENT], None, "# replicas: {min: 1, max: }   # 12 run; no limit is known"),
        ([], None, "# replicas: {min: 1, max: }   # 2 run; no limit is known"),
        # An autoscaler of something else.
        (autoscaler("chat", 1, 9)[1:], None, "no limit is known"),
    ],
    ids=["HPA", "KEDA", "HPA below what runs", "target alone", "nothing", "HPA of an unknown target"],
)
def test_bounds_come_from_the_cluster_and_never_lie_below_what_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    found: list[tuple[str, float, dict[str, str]]],
    bounds: tuple[int, int] | None,
    words: str,
) -> None:
    with answering() as server:
        server.pages[PATH] = cluster(*found)
        assert init(monkeypatch, "--detect", server.url) == 0
    text = (tmp_path / "harmony.yaml").read_text()
    assert words in text
    (workload,) = yaml.safe_load(text)["workloads"]
    assert workload.get("replicas") == (None if bounds is None else {"min": bounds[0], "max": bounds[1]})
    told = capsys.readouterr().err
    assert ("No limit of prod/chat is known" in told) is (bounds is None)
    # What is not declared takes nothing away.
    (spec,) = load_settings(tmp_path / "harmony.yaml", None, {}).policy.workloads
    assert spec.max_replicas >= 12 or bounds is not None
    if "StatefulSet" in str(found):
        assert "kind: StatefulSet" in text


def test_a_maximum_that_would_shrink_a_live_fleet_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with answering() as server:
        server.pages[PATH] = cluster(DEPLOYMENT)
        assert init(monkeypatch, "--detect", server.url, "--max-replicas", "4") == 2
        assert "--max-replicas 4 is below the 12 replicas of prod/chat that run" in capsys.readouterr().err
        assert not (tmp_path / "harmony.yaml").exists()
        assert init(monkeypatch, "--detect", server.url, "--max-replicas", "16") == 0
    assert load_settings(tmp_path / "harmony.yaml", None, {}).policy.workloads[0].max_replicas == 16


def test_the_step_that_is_given_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert init(monkeypatch, "--step", "5") == 0
    assert load_settings(tmp_path / "harmony.yaml", None, {}).step_s == 5.0
    monkeypatch.setenv("HARMONY_STEP_S", "7")
    assert init(monkeypatch, "--force") == 0
    assert load_settings(tmp_path / "harmony.yaml", None, {}).step_s == 7.0
    monkeypatch.delenv("HARMONY_STEP_S")
    with answering() as server:
        server.pages[PATH] = prometheus(every_s=60.0)
        assert init(monkeypatch, "--detect", server.url, "--step", "20", "--force") == 0
    assert load_settings(tmp_path / "harmony.yaml", None, {}).step_s == 20.0
    assert "The step is 20 s, as given. Samples come every 60 s only" in capsys.readouterr().err
