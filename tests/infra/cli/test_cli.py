"""The command line as a user meets it: words, streams, exit codes, speed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from infra.cli import app as cli
from infra.console.errors import HarmonyError
from infra.console.text import parse_duration_s

ROOT = Path(__file__).parents[3]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HARMONY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def harmony(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infra.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )


def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """`main` in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["harmony", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    code = stop.value.code
    return code if isinstance(code, int) else 0, captured.out, captured.err


def test_help_needs_neither_torch_nor_faust_and_answers_at_once() -> None:
    program = (
        "import sys, time\n"
        "import infra.cli.app\n"
        "heavy = {'torch', 'faust', 'aiokafka', 'jgo', 'pydantic', 'msgspec', 'numpy', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    begin = time.perf_counter()
    assert harmony("--help").returncode == 0
    # One second on a quiet machine; this one may be busy.
    assert time.perf_counter() - begin < 5.0


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(cli.app, ["--help"], env={"NO_COLOR": "1", "COLUMNS": "100"})
    assert result.exit_code == 0
    for command in ("run", "worker", "topics", "init", "doctor", "version", "status", "explain", "pin", "pause", "dlq"):
        assert re.search(rf"\b{command}\b", result.output), command


def test_an_option_is_written_alike_in_every_command() -> None:
    spelled: dict[str, set[tuple[str, ...]]] = {"--brokers": set(), "--config": set(), "--workload": set()}

    def look(command: Any) -> None:
        for inner in getattr(command, "commands", {}).values():
            look(inner)
        for parameter in command.params:
            for name in spelled.keys() & set(parameter.opts):
                spelled[name].add(tuple(sorted(parameter.opts)))

    look(get_command(cli.app))
    assert spelled == {
        "--brokers": {("--brokers", "-b")},
        "--config": {("--config", "-c")},
        "--workload": {("--workload", "-w")},
    }


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(monkeypatch, capsys, "--version")
    assert code == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", out)
    code, out, _ = ran(monkeypatch, capsys, "version", "--json")
    assert code == 0
    assert {"harmony", "python", "kafka", "torch"} <= json.loads(out).keys()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["topics", "check", "--nonsense"], 2, "No such option"),
        (["topics", "check"], 2, "harmony: No brokers named"),
        (["topics", "create", "--brokers", "x:y"], 2, "is no broker address"),
        (["topics", "check", "--brokers", "127.0.0.1:1"], 1, "harmony: No Kafka broker answers at 127.0.0.1:1."),
        (["topics", "check", "--config", "no.yaml"], 2, "harmony: There is no file no.yaml."),
        (["run", "--trace", "no.csv"], 2, "harmony: --trace: there is no file no.csv."),
        (["run", "--duration", "soon"], 2, "harmony: --duration: 'soon' is no duration"),
        (["run", "--workers", "0"], 2, "--workers"),
        (["worker", "--brokers", "127.0.0.1:1", "--role", "boss"], 2, "role: 'boss' is not possible"),
        (["status"], 2, "No brokers named"),
        (["init", "no/harmony.yaml"], 1, "harmony: Cannot write no/harmony.yaml"),
    ],
)
def test_mistakes_are_told_on_stderr_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    got, out, err = ran(monkeypatch, capsys, *arguments)
    assert got == code
    assert out == ""
    assert told in ANSI.sub("", err)
    assert "Traceback" not in err


def test_error_of_a_child_module_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HarmonyError("It rains.", 1)

    monkeypatch.setattr("infra.settings.docs.write_example", fail)
    assert ran(monkeypatch, capsys, "init") == (1, "", "harmony: It rains.\n")


def test_init_then_loads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = ran(monkeypatch, capsys, "init")
    assert (code, out) == (0, "")
    assert "harmony worker --config harmony.yaml" in err
    assert (tmp_path / "harmony.yaml").is_file()
    assert ran(monkeypatch, capsys, "init")[0] == 2
    code, _, err = ran(monkeypatch, capsys, "topics", "check")
    assert "No brokers named" in err


def test_no_colour_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in harmony("--help", NO_COLOR="1", FORCE_COLOR="").stdout


def test_reader_that_leaves_early_is_no_error() -> None:
    program = f"{sys.executable} -m infra.cli.app version | head -c 1"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr == ""


def test_run_hands_its_options_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen = []
    monkeypatch.setattr("infra.demo.run.run_demo", seen.append)
    (tmp_path / "t.csv").write_text("")
    code, out, _ = ran(
        monkeypatch, capsys, "run", "--trace", "t.csv", "--workers", "3", "--duration", "1h30m", "--speed", "0",
        "--step", "2", "--seed", "7", "--offline", "--no-fleet", "--json", "-q", "-b", "k", "--kafka-port", "1234",
    )  # fmt: skip
    assert (code, out) == (0, "")
    (options,) = seen
    assert (options.trace, options.workers, options.duration_s, options.speed) == (Path("t.csv"), 3, 5400.0, 0.0)
    assert (options.step_s, options.seed, options.offline, options.fleet) == (2.0, 7, True, False)
    assert (options.as_json, options.quiet, options.brokers, options.kafka_port) == (True, True, "k", 1234)
    assert options.settings.brokers == "k:9092"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--scenario", "weekend"), "'weekend' is none of day, surge, ramp, cold-start, gpu-failure, endless"),
        (("--scenario", "day", "--no-fleet"), "--scenario and --no-fleet exclude each other"),
        (("--scenario", "day", "--recording", "x"), "--scenario and --recording exclude each other"),
    ],
)
def test_a_scenario_that_cannot_be_played_says_why(
    arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = ran(monkeypatch, capsys, "run", *arguments)
    assert code == 2
    assert says in told


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("1d2h3m", 93780), (" 5S ", 5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1w", "-1s", "0", "inf", "nan", "1h 2x", "1e999", "1e300"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration_s(text)


def test_doctor_reports_and_counts_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ran(monkeypatch, capsys, "doctor", "--json", "--brokers", "127.0.0.1:1")
    report = json.loads(out)
    found = {finding["check"]: finding for finding in report["findings"]}
    assert {"python", "java", "kafka jars", "state disk", "cache disk", "web port", "gpu", "brokers"} <= found.keys()
    assert found["brokers"]["status"] == "fail"
    assert (code, report["ok"]) == (1, False)
    assert all(finding["remedy"] for finding in found.values() if finding["status"] == "fail")
    monkeypatch.setenv("COLUMNS", "60")
    assert "no Kafka" not in ran(monkeypatch, capsys, "doctor")[1]


@pytest.mark.parametrize("number", ["inf", "nan"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--offline", "--step"),
        ("run", "--offline", "--speed"),
        ("replay", "--slo-ttft"),
        ("replay", "--noise"),
        ("backtest", "--lead-time"),
        ("train", "--minutes"),
        ("actuate", "webhook", "https://x.example/", "--timeout"),
    ],
)
def test_no_option_takes_a_number_that_is_infinite_or_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], number: str
) -> None:
    code, _, told = ran(monkeypatch, capsys, *arguments, number)
    assert code == 2
    assert "Invalid value for" in told


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["version", "--json"]])
def test_a_full_disk_under_the_output_is_one_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "infra.cli.app", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("harmony: Cannot write the output: No space left on device")


def test_the_first_process_of_a_container_ends_when_told_while_it_starts() -> None:
    """There the default action of SIGTERM is none."""
    code = """
import os, signal, time
own, os.getpid = os.getpid(), lambda: 1
from infra.cli import app as cli
def starts():
    os.kill(own, signal.SIGTERM)
    time.sleep(50)
cli.app = starts
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, cwd=ROOT)
    assert done.returncode == 128 + signal.SIGTERM


def test_help_has_every_command_under_a_task() -> None:
    text = CliRunner().invoke(cli.app, ["--help"], env={"NO_COLOR": "1"}).output
    assert "Others:" not in text
    assert "..." not in text.partition("See it at work:")[2]
    tasks = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and line[:1].isupper()]
    assert tasks == ["Options", "See it at work", "Set it up", "Watch it", "Steer it", "Measure it",
                     "Models, data and state"]  # fmt: skip


@pytest.mark.parametrize("command", ["worker", "run"])
def test_a_taken_web_port_is_told_at_once_with_the_flag(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, told = ran(monkeypatch, capsys, command, "--web-port", str(port))
    assert code == 1
    assert f"Port {port} on this machine is in use by another program. Choose one with --web-port N" in told
