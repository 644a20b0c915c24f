"""`harmony replay` as a command: what it writes, and what it answers to mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli.app import app
from infra.console.errors import HarmonyError
from infra.lab.replay import run as replay_run
from infra.lab.replay.policies import catalogue
from infra.lab.replay.policies.harmony import Variant, harmony_controller
from infra.lab.replay.simulation import NewController
from tests.infra.lab.replay.replay_setting import poisson


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *arguments])
    if isinstance(result.exception, HarmonyError):
        return result.exception.exit_code, result.exception.message
    return result.exit_code, result.output


def load_file(tmp_path: Path) -> str:
    path = tmp_path / "load.csv"
    a = poisson(3.0, 900.0, 5)
    lines = [f"{t:.3f},20,8" for t in a.arrival_s]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]))
    profile = {"name": "half", "base_s": 0.5, "prefill_token_s": 0, "sequence_s": 0, "kv_token_s": 0,
               "kv_capacity_tokens": 10_000_000, "max_batch": 8, "max_prefill_tokens": 1_000_000,
               "gpus_per_replica": 2}  # fmt: skip
    (tmp_path / "half.json").write_text(json.dumps(profile))
    return str(path)


def test_the_command_writes_json_logs_and_plot(tmp_path: Path) -> None:
    code, _ = run(
        "--requests", load_file(tmp_path), "--profile", str(tmp_path / "half.json"), "--slo-tpot", "1",
        "--policies", "hpa,static-peak", "--seeds", "2", "--oracle", "20", "--lead-time", "20~0.3",
        "--faults", "gap@60+30,delayed@120+30:10",
        "--json", str(tmp_path / "out.json"), "--log-dir", str(tmp_path / "logs"), "--plot", str(tmp_path / "p.svg"),
    )  # fmt: skip
    assert code == 0
    body = json.loads((tmp_path / "out.json").read_text())
    assert {(p["policy"], p["seed"]) for p in body["policies"]} == {
        (p, s) for p in ("hpa", "static-peak") for s in (0, 1)
    }
    assert body["slo"] == {"ttft_s": 2.0, "tpot_s": 1.0, "objective": 0.99}
    assert body["lead_time_s"] == {"mean": 20.0, "sigma_log": 0.3}
    assert (tmp_path / "logs" / "hpa-1" / "requests.csv").exists()
    assert "oracle" in (tmp_path / "p.svg").read_text() or not body["oracle"]["lead_constrained"]
    assert body["oracle"]["rate_known"] == {}
    assert [(f["kind"], f["start_s"], f["end_s"], f["delay_s"]) for f in body["faults"]] == [
        ("gap", 60.0, 90.0, 0.0),
        ("delayed", 120.0, 150.0, 10.0),
    ]
    assert body["guards"]["up_period_s"] == 15.0


def test_harmony_can_be_told_a_wrong_capacity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, float | None]] = []

    def controller(variant: Variant, capacity_rps: float, *rest: Any) -> NewController:
        told.append((capacity_rps, rest[-1]))
        return harmony_controller(variant, capacity_rps, *rest)

    monkeypatch.setattr(catalogue, "harmony_controller", controller)
    for text in ("1", "0.4:2.2"):
        code, _ = run(
            "--requests", load_file(tmp_path), "--profile", str(tmp_path / "half.json"), "--slo-tpot", "1",
            "--policies", "harmony-baselines", "--seeds", "1", "--oracle", "0", "--no-tune", "--lead-time", "20",
            "--told-capacity", text, "--json", str(tmp_path / "out.json"),
        )  # fmt: skip
        assert code == 0
        assert json.loads((tmp_path / "out.json").read_text())["told_capacity"] == text
    tested = json.loads((tmp_path / "out.json").read_text())["benchmark_rps"]
    assert set(told) == {(tested, None), (0.4 * tested, 2.2)}


def test_starts_of_two_kinds(tmp_path: Path) -> None:
    code, told = run(
        "--requests", load_file(tmp_path), "--profile", str(tmp_path / "half.json"), "--slo-tpot", "1",
        "--policies", "hpa", "--seeds", "3", "--oracle", "0", "--no-tune", "--lead-time", "10/60:0.5",
        "--json", str(tmp_path / "out.json"), "--log-dir", str(tmp_path / "logs"),
    )  # fmt: skip
    assert code == 0, told
    lead_time_s = json.loads((tmp_path / "out.json").read_text())["lead_time_s"]
    assert lead_time_s["mean"] == 35.0
    assert lead_time_s["mixed_starts"] == {"quick_s": 10.0, "slow_s": 60.0, "slow_share": 0.5}
    took_s = []
    for log in (tmp_path / "logs").glob("hpa-*/replicas.csv"):
        rows = list(csv.DictReader(log.open()))
        took_s += [
            float(r["ready_s"]) - float(r["command_s"]) for r in rows if float(r["command_s"] or 0) > 0 and r["ready_s"]
        ]
    assert min(took_s) == pytest.approx(10.0, rel=0.2)
    assert max(took_s) == pytest.approx(60.0, rel=0.2)
    assert not [s for s in took_s if 15.0 < s < 45.0]


def test_the_command_tells_what_knowing_the_rate_is_worth(tmp_path: Path) -> None:
    load_file(tmp_path)
    (tmp_path / "rate.csv").write_text("start_s,rate_rps,prompt_tokens,output_tokens\n0,2,20,8\n600,0,20,8\n")
    code, told = run(
        "--rate", str(tmp_path / "rate.csv"), "--profile", str(tmp_path / "half.json"), "--slo-tpot", "1",
        "--policies", "static-peak", "--seeds", "2", "--oracle", "0", "--oracle-rate", "10", "--lead-time", "20",
        "--json", str(tmp_path / "out.json"),
    )  # fmt: skip
    assert code == 0, told
    assert "oracle, rate known" in told
    bounds = json.loads((tmp_path / "out.json").read_text())["oracle"]["rate_known"]
    assert set(bounds) == {"0", "1"}
    assert all(bound["gpu_hours"] > 0 and bound["simulations"] <= 10 for bound in bounds.values())


def test_the_command_tells_what_is_possible_where_nothing_announces_a_jump(tmp_path: Path) -> None:
    load_file(tmp_path)
    rates = "start_s,rate_rps,prompt_tokens,output_tokens\n0,2,20,8\n1860,8,20,8\n2100,2,20,8\n2400,0,20,8\n"
    (tmp_path / "rate.csv").write_text(rates)
    for option, causal in (("x1.33", {"0"}), ("x9", set())):
        code, told = run(
            "--rate", str(tmp_path / "rate.csv"), "--profile", str(tmp_path / "half.json"), "--slo-tpot", "1",
            "--policies", "static-peak", "--seeds", "1", "--oracle", "20", "--lead-time", "60", "--surprise", option,
            "--json", str(tmp_path / "out.json"),
        )  # fmt: skip
        assert code == 0, told
        body = json.loads((tmp_path / "out.json").read_text())
        assert body["surprises_s"] == [1860.0] * len(causal)
        assert set(body["oracle"]["causal"]) == causal
        assert ("oracle, surprised" in told) == bool(causal)
        for bounds in body["oracle"]["causal"].values():
            assert bounds["unready"]["attainment"] < 0.99
            assert bounds["ready"] is None or bounds["ready"]["attainment"] >= 0.99
            assert (bounds["ready"] is None) == (bounds["held_ready"] is None)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "either --requests"),
        (["--rate", "ramp", "--policies", "hpa,nonsense"], "Unknown policy 'nonsense'"),
        (["--rate", "ramp", "--min-replicas", "5", "--max-replicas", "2"], "min <= max"),
        (["--rate", "ramp", "--surprise", "soon"], "--surprise must be seconds"),
        (["--rate", "ramp", "--surprise", "9e9", "--policies", "hpa"], "ends after"),
        (["--rate", "ramp", "--lead-time", "soon"], "--lead-time must be"),
        (["--rate", "ramp", "--lead-time", "-5"], "--lead-time must be"),
        (["--rate", "ramp", "--lead-time", "40/300"], "--lead-time must be"),
        (["--rate", "ramp", "--lead-time", "300/40:0.2"], "--lead-time must be"),
        (["--rate", "ramp", "--lead-time", "40/300:1"], "--lead-time must be"),
        (["--rate", "ramp", "--slo-ttft", "0"], "above 0"),
        (["--rate", "ramp", "--objective", "99"], "--objective"),
        (["--rate", "ramp", "--profile", "no-such"], "no such profile"),
        (["--rate", "ramp", "--slo-tpot", "0.001"], "idle replica"),
        (["--rate", "nowhere.csv"], "cannot be read"),
        (["--rate", "ramp", "--plot-risk", "risk.bmp"], "must end in .png"),
        (["--rate", "ramp", "--no-tune", "--epsilon", "5"], "--epsilon must be between 0 and 1"),
        (["--rate", "ramp", "--faults", "gap@1"], "--faults must be of gap, silent, frozen, delayed"),
        (["--rate", "ramp", "--told-capacity", "half"], "--told-capacity must be times of the load test's figure"),
        (["--rate", "ramp", "--told-capacity", "2:9"], "a factor of 1.01 to 2.5 that it may be off by, got '2:9'"),
        (["--rate", "ramp", "--lead-time", "100~1e300"], "a sigma of at most 5"),
        (["--rate", "ramp", "--lead-time", "1e300"], "at most a day"),
        (["--rate", "ramp", "--prompt-tokens", "1e300"], "1 to 10000000"),
        (["--rate", "ramp", "--output-tokens", "200:1e300"], "a sigma of at most 5"),
        (["--rate", "ramp", "--mean-rate", "1e300"], "thin it with --mean-rate"),
        (["--rate", "ramp", "--mean-rate", "1e-300"], "No request of ramp arrives"),
        (["--rate", "ramp", "--scrape-interval", "1e-300"], "0 or at least 0.1"),
        (["--rate", "ramp", "--max-replicas", "1000000000"], "100000 at most"),
        (["--rate", "ramp", "--day", "1"], "--day needs a file of two or more"),
        (["--requests", "any.csv", "--day", "1"], "are of a rate file"),
        (["--requests", "any.csv", "--mean-rate", "2"], "are of a rate file"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(arguments: list[str], what: str) -> None:
    code, message = run(*arguments)
    assert code == 2
    assert what in message


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ("-1,5,5", ">= 0"),
        ("2,5,5\n1,5,5", "goes back in time"),
        ("1,0,5", "1 have no prompt or no answer"),
        ("", "no request"),
    ],
)
def test_bad_requests_are_refused(tmp_path: Path, rows: str, what: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    code, message = run("--requests", str(path))
    assert code == 2
    assert what in message


@pytest.mark.parametrize(
    ("first_s", "last_s", "what"),
    [
        (1_700_000_000, 1_700_001_200, "count seconds from the start of the trace"),
        (0, 100_000_000, "more than a year"),
        (5_000, 6_200, "count times from where the load begins"),
    ],
)
def test_times_that_are_no_seconds_of_a_load_are_told(tmp_path: Path, first_s: int, last_s: int, what: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{first_s},100,20\n{last_s},100,20\n")
    code, message = run("--requests", str(path))
    assert code == 2
    assert what in message


def test_a_day_without_requests_is_told(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text("start_s,rate_rps\n0,1\n86400,0\n172800,1\n259200,0\n")
    quiet, before = run("--rate", str(path), "--day", "1"), run("--rate", str(path), "--day", "2")
    assert quiet == (2, "Day 1 of days holds no request: choose another with --day.")
    assert before[0] == 2
    assert "or the day before" in before[1]


def test_who_sees_less_far_than_a_start_takes_is_told(tmp_path: Path) -> None:
    load = load_file(tmp_path)
    profile = ["--profile", str(tmp_path / "half.json"), "--slo-tpot", "1"]
    common = ["--requests", load, *profile, "--no-tune", "--seeds", "1", "--oracle", "0", "--step", "60"]
    assert "gives no replica up" in run(*common, "--policies", "harmony", "--lead-time", "4000")[1]
    assert "gives no replica up" not in run(*common, "--policies", "harmony", "--lead-time", "3000")[1]
    assert "gives no replica up" not in run(*common, "--policies", "hpa", "--lead-time", "4000")[1]


def test_days_before_need_a_day() -> None:
    assert run("--rate", "ramp", "--past-days", "2") == (
        2, "--past-days are those before --day: name the day of a rate file.",
    )  # fmt: skip


def test_runs_that_cannot_differ_are_told_and_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded requests and a constant lead time: a rule has one run, and each seed shows it."""
    load, out = load_file(tmp_path), tmp_path / "out.json"
    simulated: list[int] = []
    inner = replay_run.simulate

    def counted(*arguments: Any) -> Any:
        simulated.append(arguments[2])
        return inner(*arguments)

    monkeypatch.setattr(replay_run, "simulate", counted)
    common = ["--requests", load, "--policies", "hpa", "--no-tune", "--oracle", "0", "--seeds", "3", "--json", str(out)]
    code, told = run(*common, "--lead-time", "20")
    assert code == 0, told
    assert "3 runs have the same arrivals and lead times" in told
    assert simulated == [0]
    rows = json.loads(out.read_text())["policies"]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert len({row["gpu_hours"] for row in rows}) == 1
    code, told = run(*common, "--lead-time", "20~0.3")
    assert (code, len(simulated), "same arrivals" in told) == (0, 4, False)
