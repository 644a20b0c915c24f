"""`harmony actuate`: the words, the kit on programs of others, and mistakes in one sentence."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from typer.testing import CliRunner, Result

from agents.actuation.guard import RateCaps
from infra.actuate.cli import app
from infra.actuate.store import OverridesFile
from infra.cli.app import app as harmony
from infra.console.errors import HarmonyError

OWN = shlex.join([sys.executable, str(Path(__file__).parent / "own_actuator.py")])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def order(*arguments: str) -> Result:
    """An operator's word to the actuators of this host."""
    return CliRunner().invoke(harmony, [*arguments, "--here"])


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARMONY_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "actuate/words.json"


def told(*arguments: str) -> dict[str, object]:
    result = run("words", *arguments)
    assert result.exit_code == 0
    found: dict[str, object] = orjson.loads(result.stdout)
    return found


def test_words_are_kept_in_a_file_and_read_back(words: Path) -> None:
    assert told() == {"stopped": None, "pins": {}}
    assert not words.exists(), "reading writes nothing"
    assert order("pause", "--reason", "incident 7\n").exit_code == 0
    assert order("pin", "prod/chat", "9", "--for", "2h").exit_code == 0
    found = told()
    assert str(found["stopped"]).endswith("incident 7\\n"), "one line, whatever was typed"
    assert found["pins"]["prod/chat"]["replicas"] == 9  # type: ignore[index]
    assert order("resume").exit_code == order("unpin", "prod/chat").exit_code == 0
    assert told() == {"stopped": None, "pins": {}}


def test_a_pin_that_is_not_there_is_not_said_to_be_gone(words: Path) -> None:
    assert order("pin", "prod/chat", "9").exit_code == 0
    refused = order("unpin", "prod/caht")
    assert refused.exit_code == 2
    assert refused.stderr == "harmony: Nothing on this host pins 'prod/caht'; did you mean `prod/chat`.\n"
    assert list(told()["pins"]) == ["prod/chat"]  # type: ignore[call-overload]


def test_words_may_stand_elsewhere(words: Path, tmp_path: Path) -> None:
    other = tmp_path / "mounted.json"
    assert CliRunner().invoke(harmony, ["pause", "--words", str(other)]).exit_code == 0
    assert told()["stopped"] is None
    assert str(told("--words", str(other))["stopped"]).startswith("stopped by ")


def test_a_pin_beyond_bounds_or_of_an_unknown_workload_is_kept_with_a_word(words: Path, tmp_path: Path) -> None:
    (tmp_path / "harmony.yaml").write_text(
        "workloads:\n- {id: prod/chat, target: {name: chat}, replicas: {min: 1, max: 4}}\n"
    )
    beyond, strange = order("pin", "prod/chat", "9"), order("pin", "prod/caht", "3")
    assert "above the declared maximum of 4: a pin wins over bounds" in beyond.stderr
    assert "a workload 'prod/caht' yet; did you mean `prod/chat`." in strange.stderr
    assert set(told()["pins"]) == {"prod/chat", "prod/caht"}  # type: ignore[call-overload]


def test_the_kill_switch_of_a_host_is_for_all_workloads(words: Path) -> None:
    refused = order("pause", "prod/chat")
    assert refused.exit_code == 2
    assert "`harmony pin prod/chat N --here`" in refused.stderr
    assert not words.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("pin", "w", "9", "--for", "soon"),
        ("pin", "w", "-1"),
        ("pin", "w", "1000001"),
        ("pin", "w", "99999999999999999999"),
        ("pin", "", "3"),
        ("pin", "a\nb", "3"),
        ("pin", "<b>", "3"),
        ("pin", "w" * 2_000, "3"),
    ],
)
def test_a_pin_that_cannot_be_meant_is_refused(words: Path, arguments: tuple[str, ...]) -> None:
    result = order(*arguments)
    assert result.exit_code != 0
    assert not words.exists()
    assert result.exception is None or isinstance(result.exception, SystemExit | HarmonyError)
    assert getattr(result.exception, "exit_code", 2) == 2


@pytest.mark.parametrize("count", ["-1", "1000001", "99999999999999999999", "1e30"])
def test_a_file_with_a_count_that_nobody_can_hold_is_a_thrown_kill_switch(words: Path, count: str) -> None:
    words.parent.mkdir()
    words.write_text(f'{{"pins":{{"w":{{"replicas":{count}}}}}}}')
    found = OverridesFile(words).read()
    assert found is not None
    assert found.pins == {}
    assert found.stopped is not None
    assert "cannot be read" in found.stopped


def test_the_kit_runs_on_our_core_from_the_command_line() -> None:
    result = run("check", "--runs", "3", "--json")
    found = orjson.loads(result.stdout)
    assert (result.exit_code, found["failed"], found["skipped"]) == (0, 0, 0)
    assert found["passed"] == len(found["cases"]) > 25


def test_a_program_of_somebodys_own_is_put_through_the_kit() -> None:
    result = run("check", "--exec", OWN, "--runs", "4", "--json")
    found = orjson.loads(result.stdout)
    assert {c["case"]: c["detail"] for c in found["cases"] if c["outcome"] == "failed"} == {}
    assert result.exit_code == 0
    skipped = {c["detail"].rsplit(" ", 1)[-1] for c in found["cases"] if c["outcome"] == "skipped"}
    assert skipped == {"caps", "words", "clock", "words,"} or skipped == {"caps", "words", "clock"}


def test_what_looks_right_at_first_fails_the_kit() -> None:
    result = run("check", "--exec", f"{OWN} naive", "--runs", "4")
    assert result.exit_code == 1
    for case in ("older sequence is refused", "nobody elses change is overwritten", "run out lease leaves the count"):
        assert case in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("program", "detail"),
    [("/nowhere/at/all", "does not start"), ("true", " to start"), (f"{sys.executable} -c 'print(1)'", "no JSON")],
)
def test_a_program_that_does_not_answer_fails_in_words(program: str, detail: str) -> None:
    result = run("check", "--exec", program, "--runs", "0", "--json")
    found = orjson.loads(result.stdout)
    assert (result.exit_code, found["passed"]) == (1, 0)
    assert detail in found["cases"][0]["detail"]


@pytest.mark.parametrize(
    "flags", [["--exec"], ["--python"], ["--exec", OWN, "--python"], ["--python", "a:b", "--exec"]]
)
@pytest.mark.parametrize("nothing", ["", " ", "\t\n"])
def test_a_subject_that_is_not_named_is_not_our_own_core(flags: list[str], nothing: str) -> None:
    refused = run("check", *flags, nothing)
    assert isinstance(refused.exception, HarmonyError)
    assert refused.exception.exit_code == 2
    assert f"{flags[-1]} is empty" in refused.exception.message


def test_a_python_subject_is_found_by_name() -> None:
    result = run("check", "--python", "tests.infra.actuate.test_cli:our_subject", "--runs", "0")
    assert result.exit_code == 0
    for wrong in ("nowhere:x", "tests.infra.actuate.test_cli:nobody", "tests.infra.actuate.test_cli:OWN"):
        refused = run("check", "--python", wrong)
        assert isinstance(refused.exception, HarmonyError)
        assert refused.exception.exit_code == 2


def our_subject() -> object:
    from infra.actuate.conformance.subjects import ControllerSubject, MemoryWorld

    return ControllerSubject(MemoryWorld())


def test_a_webhook_without_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HARMONY_WEBHOOK_SECRET", raising=False)
    for arguments in (("webhook", "https://x.example/"), ("webhook", "https://x.example/", "--secret-file", "gone")):
        refused = run(*arguments)
        assert isinstance(refused.exception, HarmonyError)
        assert refused.exception.exit_code == 2


def test_acting_on_nothing_declared_is_refused(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMONY_BROKERS", "127.0.0.1:9")
    monkeypatch.setattr("infra.observability.logs.configure_logging", lambda *_, **__: None)
    refused = run("kubernetes", "--act", "--server", "http://127.0.0.1:9")
    assert isinstance(refused.exception, HarmonyError)
    assert refused.exception.exit_code == 2
    assert "declare what may be scaled" in refused.exception.message


def test_what_every_actuator_is_told_is_declared_once_and_reaches_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = typer.main.get_command(app)
    options = {
        name: {option for p in command.params for option in p.opts if option.startswith("--")}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        if name not in ("check", "stop", "resume", "pin", "unpin", "words")
    }
    shared = {"--json", "--brokers", "--config", "--words", "--max-added", "--max-removed", "--max-removed-fleet"}
    acting = shared | {"--name", "--web-host", "--web-port"}
    assert options.keys() == {"dry-run", "webhook", "kubernetes", "keda", "plugin"}
    assert all(found >= (shared if name == "dry-run" else acting) for name, found in options.items())
    assert not options["dry-run"] & {"--name", "--web-host", "--web-port"}

    seen: list[Any] = []

    async def run_dry(chosen: Any, **how: Any) -> None:
        seen.append((chosen, how))

    monkeypatch.setattr("infra.actuate.assembly.run_dry", run_dry)
    monkeypatch.chdir(tmp_path)
    line = "dry-run --once --json -b k:9 --words w.json --max-added 1 --max-removed 2 --max-removed-fleet 3"
    assert run(*line.split()).exit_code == 0
    ((chosen, how),) = seen
    assert (chosen.brokers, chosen.name, chosen.overrides, chosen.web_port) == ("k:9", "dry-run", Path("w.json"), None)
    assert chosen.caps == RateCaps(1, 2, 3)
    assert how == {"once": True, "simulated": False, "as_json": True}
