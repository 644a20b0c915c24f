"""Files and pipes, and the commands as people run them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli.app import app
from infra.collect.formats.raw_record import NOT_MEASURED
from infra.console.errors import HarmonyError
from tests.infra.collect.exporter import answering
from tests.infra.collect.samples import DCGM, KUBE, TS_MS, VLLM

SMI = """\
timestamp, index, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu
2025/11/20 11:00:15.000, 0, GPU-a, 87 %, 1024 MiB, 81559 MiB, 312.50 W, 61
2025/11/20 11:00:15.004, 1, GPU-b, 0 %, 3 MiB, 81559 MiB, [N/A], [Not Supported]
"""


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HARMONY_CONFIG", "HARMONY_BROKERS", "TZ"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, stdin: str | None = None, fails: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Printed records and what was said; a HarmonyError's exit code is compared with `fails`."""
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if isinstance(result.exception, HarmonyError):
        assert result.exception.exit_code == fails, result.exception.message
        return [], result.exception.message
    assert result.exit_code == fails, (result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")], result.stderr


def test_a_dump_of_an_exporter(tmp_path: Path) -> None:
    path = tmp_path / "vllm.prom"
    path.write_text(VLLM)
    records, said = run("collect", "file", str(path), "--dry-run")
    assert [(r["topic"], r["key"]) for r in records] == [("harmony.telemetry.requests", "acme/chat-7b")]
    assert records[0]["value"]["source"] == ["vllm"]
    assert "17 samples, 1 readings, 1 records printed" in said


def test_gzip_and_labels_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "vllm.prom.gz"
    path.write_bytes(gzip.compress(VLLM.encode()))
    records, _ = run("collect", "file", str(path), "--dry-run", "--label", "namespace=prod", "--label", "instance=h:1")
    assert (records[0]["key"], records[0]["value"]["source"]) == ("prod/acme/chat-7b", ["h:1"])


def test_csv_of_nvidia_smi_through_a_pipe() -> None:
    records, _ = run("collect", "file", "-", "--dry-run", "-w", "w", "--label", "instance=n1", stdin=SMI)
    values = [r["value"] for r in records]
    assert [v["source"] for v in values] == [["n1/0/GPU-a"], ["n1/1/GPU-b"]]
    assert values[0]["values"] == {
        "sm_active_ratio": [0.87], "memory_used_bytes": [2.0**30], "memory_total_bytes": [81559 * 2.0**20],
        "power_w": [312.5], "temperature_c": [61.0],
    }  # fmt: skip
    assert set(values[1]["values"]) == {"sm_active_ratio", "memory_used_bytes", "memory_total_bytes"}


def test_csv_rows_may_end_early_but_not_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "n1.csv"
    path.write_text(
        "timestamp,device,power_watts,gpu_use_percent\n1763636415,card0,200\n,card0,1,2\n1763636416,card0,2"
    )
    records, said = run("collect", "file", str(path), "--dry-run", "-w", "w")
    assert records[0]["value"]["ts_ms"] == [TS_MS]
    assert records[0]["value"]["source"] == ["n1/card0"]
    assert records[0]["value"]["values"] == {"power_w": [200.0]}
    assert "2 rows have no time, or are cut off" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("a,b\nx,y\n", "line 1"),
        ("timestamp,gpu,power_w\nsoon,0,1\n", "line 2, column timestamp: 'soon' is not a time"),
        ("timestamp,gpu,power_w\n1763636415,0,1\ninf,0,1\n", "line 3, column timestamp: 'inf' is not a time"),
        ("timestamp,gpu,power_w\n0001-01-01,0,1\n", "line 2, column timestamp: '0001-01-01' is no time that"),
        ("timestamp,gpu,power_w\n1763636415,0," + "9" * 200_000 + "\n", "line 2 is not CSV"),
        ("timestamp,gpu," + "p" * 200_000 + "\n", "line 1 is not CSV"),
        ("# comment\n<html>\n", "line 2 is no sample"),
        (
            "#Entity   GPUTL\nID   W\nGPU 0   98\n",
            "line 2 is no sample of an exposition ('ID   W'); of a device's tool",
        ),
        ("# gpu   pwr  temp\n    0   111    83\n", "line 2 is no sample of an exposition ('0   111    83')"),
        ("+-----+\n| GPU |\n", "line 1 is no sample of an exposition"),
        ('{"name":"x","fields":{}}\n{"a":1}\n', "line 2: no known format"),
        ("{\n", "line 1, column 2: not JSON"),
    ],
)
def test_mistakes_in_files_are_named_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    _, message = run("collect", "file", str(path), "--dry-run", "-w", "w", fails=2 if text != "a,b\nx,y\n" else 0)
    if text != "a,b\nx,y\n":
        assert message.startswith(f"{path}: ")
        assert words in message


@pytest.mark.parametrize(
    "text",
    [
        '{"vllm:num_requests_running",model_name="m"} 4\n',
        '\ufeffvllm:num_requests_running{model_name="m"} 4\n',
        '\n \n\t# HELP x\n  vllm:num_requests_running{model_name="m"} 4\n',
        'vllm:num_requests_running{model_name="a,b"} 4\n',
        json.dumps({"name": "engines", "tags": {"model_name": "m"}, "fields": {"vllm:num_requests_running": 4}}),
        "\ufeff" + json.dumps([{"name": "vllm:num_requests_running", "gauge": {"value": 4}}], indent=2),
    ],
)
def test_the_format_is_told_by_the_first_line_that_says_something(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    records, _ = run("collect", "file", str(path), "--dry-run", "-w", "w")
    assert [r["value"]["values"] for r in records] == [{"num_requests_running": [4.0]}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm:num_requests_running 4,5\n", "line 1, column 27: '4,5' is no number"),
        ('\n{"a":1}\n', "line 2: no known format"),
        ("\n\na 1\nvllm:num_requests_running x\n", "line 4, column 27: 'x' is no number"),
    ],
)
def test_lines_are_counted_from_the_begin_of_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert words in run("collect", "file", str(path), "--dry-run", "-w", "w", fails=2)[1]


def test_what_is_left_out_is_in_the_summary_and_at_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    gauges = [{"name": "vllm:num_requests_running", "gauge": {"value": value}} for value in (4, None)]
    path.write_text("\n".join(json.dumps(item) for item in (*gauges, {"name": "x", "distribution": {}})))
    _, said = run("collect", "file", str(path), "--dry-run", "-w", "w")
    assert f"left out: 1 samples: {NOT_MEASURED}\nleft out: 1 samples: distribution" in said
    *_, summary = run("collect", "file", str(path), "--dry-run", "-w", "w", "--json")[0]
    assert summary["passed_over"] == {NOT_MEASURED: 1, "distribution": 1}


def test_a_series_twice_in_a_page_with_two_values_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    name = "vllm:num_requests_running"
    path.write_text(f"{name} 4\n{name} 4\n{name} 5\n{name} NaN\n{name} 6 1763636415000\n")
    records, said = run("collect", "file", str(path), "--dry-run", "-w", "w")
    assert records[0]["value"]["values"] == {"num_requests_running": [6.0, 5.0]}
    assert "left out: 1 samples: the series stands twice with different values" in said
    assert f"left out: 1 samples: {NOT_MEASURED}" in said


def test_that_nothing_was_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"name": "x", "fields": {}}\n')
    assert "Nothing to publish yet: 0 samples were read" in run("collect", "file", str(path), "--dry-run")[1]


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n1.csv.gz"
    packed = gzip.compress(SMI.encode() * 100)
    path.write_bytes(packed[:20] + b"\xff\xff\xff" + packed[23:])
    _, message = run("collect", "file", str(path), "--dry-run", "-w", "w", fails=2)
    assert message.startswith(f"Cannot read {path}: ")


def test_scraping_once(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text(
        "workloads:\n  - {id: mine, match: {namespace: prod, pod: 'chat-7b-*'}}\n"
        "  - {id: other, match: {deployment: chat-7b}}\n"
    )
    with answering(metrics=DCGM, kube=KUBE) as exporter:
        records, said = run(
            "collect", "prometheus", "--scrape", exporter.address, "--scrape", f"{exporter.url}/kube", "--scrape",
            f"{exporter.url}/gone", "--once", "--dry-run", "--config", str(config),
        )  # fmt: skip
    assert {r["key"]: r["value"]["kind"] for r in records} == {"mine": "gpu", "other": "fleet"}
    assert "/gone cannot be read: HTTP 404" in said
    assert "no label names the workload" in said


def test_a_target_file_with_replicas_counted(tmp_path: Path) -> None:
    targets = tmp_path / "targets.yaml"
    with answering(metrics=VLLM) as exporter:
        targets.write_text(json.dumps([{"targets": [exporter.address], "labels": {"namespace": "n"}}]))
        records, _ = run(
            "collect", "prometheus", "--targets", str(targets), "--once", "--dry-run", "--count-replicas", "-p", "vllm"
        )  # fmt: skip
    assert [r["value"]["kind"] for r in records] == ["requests", "fleet"]
    assert records[1]["value"]["values"]["replicas_ready"] == 1


def test_json_summary() -> None:
    with answering(metrics=VLLM) as exporter:
        records, _ = run("collect", "prometheus", "--scrape", exporter.address, "--once", "--dry-run", "--json")
    summary = records[-1]
    assert (summary["records"], summary["readings"], summary["workloads"]) == (1, {"vllm": 1}, ["acme/chat-7b"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prometheus", "--dry-run"), "either --server URL, or exporters"),
        (("prometheus", "--server", "http://x", "--scrape", "h", "--dry-run"), "either --server URL, or exporters"),
        (("prometheus", "--server", "x:9090", "--dry-run"), "'x:9090' is no address of a Prometheus server"),
        (("prometheus", "--scrape", "h:1", "--interval", "soon", "--dry-run"), "--interval"),
        (("prometheus", "--scrape", "h:1", "--interval", "0.01", "--dry-run"), "at least 0.1 s"),
        (("prometheus", "--scrape", "h:1", "--profile", "vlm", "--dry-run"), "did you mean vllm"),
        (("prometheus", "--scrape", "h:1", "--mapping", "none.yaml", "--dry-run"), "no file none.yaml"),
        (("file", "none.prom", "--dry-run"), "Cannot read none.prom"),
        (("file", "none.prom", "--format", "xml", "--dry-run"), "--format 'xml' is none of"),
        (("remote-write", "--listen", "9201", "--dry-run"), "write host:port"),
        (("remote-write", "--listen", "0.0.0.0:9201", "--dry-run"), "--token-file"),
        (("remote-write", "--hold", "x", "--dry-run"), "--hold"),
        (("profiles", "--show", "nothing"), "no profile 'nothing'"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    if "remote-write" in arguments:
        pytest.importorskip("google.protobuf", reason="protobuf (extra collect) is not installed")
    _, message = run("collect", *arguments, fails=2)
    assert words in message


def test_a_broker_that_is_not_there_is_named() -> None:
    with answering(metrics=VLLM) as exporter:
        _, message = run("collect", "prometheus", "--scrape", exporter.address, "--once", "-b", "127.0.0.1:1", fails=1)
    assert "No Kafka broker answers at 127.0.0.1:1" in message
    _, message = run("map", "-b", "127.0.0.1:1", fails=1)
    assert "No Kafka broker answers" in message
    _, message = run("map", "--format", "xml", "-b", "127.0.0.1:1", fails=2)
    assert "is none of auto" in message


def test_nothing_to_read_once_is_a_failure() -> None:
    with answering() as exporter:
        _, message = run("collect", "prometheus", "--scrape", exporter.address, "--once", "--dry-run", fails=1)
    assert "HTTP 404" in message


def test_profiles_list_and_yaml() -> None:
    result = CliRunner().invoke(app, ["collect", "profiles"])
    assert "node (opt-in)" in result.stdout
    shown = CliRunner().invoke(app, ["collect", "profiles", "--show", "dcgm"])
    assert shown.stdout.startswith("profiles:\n- name: dcgm\n")
