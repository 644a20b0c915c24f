"""Each claim has a record that keeps its bar, or is marked open, and a control arm that misses it."""

from __future__ import annotations

import ast
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.bench.stored import results
from tests.claims import __main__ as runner
from tests.claims.checks import failures, faults_found
from tests.claims.claim import Bar, Claim, Measurement
from tests.claims.registry import claims, recorded

ROOT = Path(__file__).parents[2]
MEASUREMENTS = list(dict.fromkeys(m for claim in claims() for m in claim.measurements))


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_the_record_keeps_the_bar_or_the_claim_is_open(claim: Claim) -> None:
    its = recorded(claim)
    assert its.control_fails, f"{its.control_shown} of the control arm keeps the bar"
    assert its.verdict == ("open" if claim.is_open else "pass"), f"{its.shown}, {claim.bar_text}"
    assert re.match(r"\d{4}-\d\d-\d\d$", its.record["date"])
    assert its.record["machine"]["cores"] >= 1


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_the_source_is_a_page_or_a_publication(claim: Claim) -> None:
    assert claim.source.startswith("arXiv ") or (ROOT / claim.source).is_file()


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda measurement: measurement.record)
def test_the_command_exists(measurement: Measurement) -> None:
    for command in filter(None, (measurement.command, measurement.short)):
        assert re.match(r"harmony bench \w+|python -m tests\.\w+\.\w+", command)
        for file, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", command):
            tree = ast.parse((ROOT / file).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, command


MADE = Measurement("made", "harmony bench made", "seconds")


def made_claim(*, is_open: bool) -> Claim:
    """A claim whose figure is `mine` and whose control arm is `other`; at least 2."""
    return Claim(
        "made", "It is made.", "README.md", MADE, lambda its: its["mine"], Bar(2.0), "{:.1f}", "nothing",
        lambda its: its["other"], is_open=is_open,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "other", "is_open", "verdict"),
    [
        (2.0, 1.0, False, "pass"),
        (1.9, 1.0, False, "FAIL"),
        (1.9, 1.0, True, "open"),
        (2.5, 1.0, True, "pass"),
        (2.5, 2.0, False, "FAIL"),
        (1.9, 2.0, True, "FAIL"),
        (float("nan"), 1.0, False, "FAIL"),
    ],
)
def test_verdicts(mine: float, other: float, is_open: bool, verdict: str) -> None:
    record = {"date": "2026-01-01", "results": {"mine": mine, "other": other}}
    assert made_claim(is_open=is_open).judge(lambda _: record).verdict == verdict


def test_a_check_that_ran_no_test_or_missed_a_fault_shows_nothing() -> None:
    done = {"passed": 2, "failed": 0}
    assert failures({"claim": done}) == 0
    assert failures({"claim": {"passed": 1, "failed": 1}}) == 1
    assert failures({"claim": {"passed": 0, "failed": 0}}) == float("inf")
    assert faults_found({"control": done}) == 2
    assert faults_found({"control": {"passed": 1, "failed": 1}}) == 0


def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: Any, *arguments: str) -> tuple[int, Any]:
    """Exit code and stored table of a run in which every command writes this record; None: the command fails."""

    class Done:
        returncode = 0 if record is not None else 3

    def run(command: list[str], **_: Any) -> Done:
        if record is not None:
            Path(command[-1]).write_text(json.dumps(record))
        return Done()

    monkeypatch.setattr(runner.subprocess, "run", run)
    monkeypatch.setattr(runner, "OUT", tmp_path / "claims.json")
    code = runner.main(arguments)
    return code, json.loads((tmp_path / "claims.json").read_bytes())["results"]


def test_a_claim_that_fails_ends_the_run_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = dict(results("inference"))
    slow = deepcopy(good)
    for row in slow["results"]:
        row["of_eager"] = 1.0
    for record, code, verdict, how in (
        (good, 0, "pass", "measured"),
        (slow, 1, "FAIL", "measured"),
        (None, 1, "FAIL", "exit code 3"),
    ):
        found = ran(monkeypatch, tmp_path, record, "network-beside-eager")
        assert (found[0], found[1][0]["verdict"], found[1][0]["how"]) == (code, verdict, how)
        assert verdict in capsys.readouterr().out


def test_an_open_claim_ends_the_run_with_0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, (found,) = ran(monkeypatch, tmp_path, dict(results("recovery-10000")), "recovery-of-10000")
    assert (code, found["verdict"], found["how"][:3]) == (0, "open", "of ")


def test_what_a_short_form_leaves_out_is_judged_by_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = dict(results("ingest"))
    short["results"] = {"single": short["results"]["single"]}
    code, found = ran(monkeypatch, tmp_path, short, "ingest-beside-loop", "ingest-binary-of-fetch")
    assert code == 0
    assert [its["how"] for its in found] == ["measured", f"of {results('ingest')['date']}"]


def test_an_unknown_claim_is_named() -> None:
    with pytest.raises(SystemExit, match="nothing-such: no such claim; there are"):
        runner.main(["nothing-such"])


def test_a_full_command_that_lacks_the_figure_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, (found,) = ran(monkeypatch, tmp_path, {"date": "2026-01-01", "results": {}}, "plan-time", "--all")
    assert (code, found["verdict"]) == (1, "FAIL")
    assert "lacks" in found["how"]
