"""Loads, oracles, tuning, logs and the command of `harmony replay`."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from infra.cli import app
from infra.errors import HarmonyError
from infra.replay.benchmark import benchmark_rps
from infra.replay.catalogue import TRIALS, Choice, Knowledge, candidates, controller_of
from infra.replay.harmony import HARMONY_VARIANTS, harmony_controller
from infra.replay.live import live
from infra.replay.oracle import Schedule, carry_out, find_schedule, schedule_for_rate
from infra.replay.rates import Tokens, read_rates
from infra.replay.records import paired_interval, write_logs
from infra.replay.setting import Load, Setting
from infra.replay.tuning import Trial, best_of, tune
from infra.simulator.arrivals import Arrivals, TraceError
from infra.simulator.ledger import Objective
from infra.simulator.profiles import Profile

# Half a second per iteration of any size: at most 8 requests at once make 2 requests/s of 8 tokens.
HALF = Profile("half", 0.5, 0.0, 0.0, 0.0, 10_000_000, 8, 1_000_000, 2)
OBJECTIVE = Objective(2.0, 1.0)


def poisson(rate_rps: float, end_s: float, seed: int, start_s: float = 0.0) -> Arrivals:
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_rps * (end_s - start_s))
    return Arrivals(np.sort(rng.uniform(start_s, end_s, count)), np.full(count, 20), np.full(count, 8))


def setting(lead_s: float = 20.0, **changes: object) -> Setting:
    arrivals = Arrivals.joined([poisson(1.0, 300.0, 1), poisson(5.0, 600.0, 2, 300.0), poisson(1.0, 900.0, 3, 600.0)])
    values: dict[str, object] = {"max_replicas": 6, "lead_s": lead_s, "initial_replicas": 1, "share": 0.95}
    return Setting(Load("steps", arrivals, (60.0, 900.0)), HALF, OBJECTIVE, **(values | changes))  # type: ignore[arg-type]


KNOWN = Knowledge(1.5, 6.0, np.empty(0))


# Loads.


def test_a_built_in_ramp_has_its_rates_and_lengths() -> None:
    ramp = read_rates("ramp")
    assert ramp.end_s == 2430
    a = ramp.arrivals(3)
    counts = np.histogram(a.arrival_s, ramp.edges_s)[0]
    assert np.all(np.abs(counts - ramp.rates_rps * np.diff(ramp.edges_s)) < 5 * np.sqrt(counts))
    assert set(a.prompt_tokens) == {4000}
    assert np.array_equal(a.arrival_s, ramp.arrivals(3).arrival_s)


def test_thinning_keeps_the_shape_and_sets_the_mean() -> None:
    ramp = read_rates("ramp")
    thin = ramp.thinned(1.0)
    assert thin.mean_rps == pytest.approx(1.0)
    assert np.allclose(thin.rates_rps / ramp.rates_rps, thin.rates_rps[0] / ramp.rates_rps[0])
    assert ramp.between(330, 1000).end_s == 670


@pytest.mark.parametrize("name", ["flash-crowd", "regime-shift"])
def test_built_in_loads_read(name: str) -> None:
    assert len(read_rates(name).arrivals(0)) > 1_000


def test_token_laws_have_their_mean() -> None:
    drawn = Tokens(500, 0.6).draw(np.random.default_rng(0), 40_000)
    assert drawn.mean() == pytest.approx(500, rel=0.02)


def test_requests_per_minute_are_read_and_gaps_repeat(tmp_path: Path) -> None:
    path = tmp_path / "minutes.csv"
    path.write_text("period,count\n1998-05-01 00:00:00,60\n1998-05-01 00:03:00,120\n")
    assert read_rates(path).rates_rps.tolist() == [1.0, 1.0, 1.0, 2.0]


def test_clients_are_summed_and_lengths_weighed(tmp_path: Path) -> None:
    trace = tmp_path / "x_trace.csv"
    trace.write_text("category,chunk,timestamp,rate\nx,0,0,1\nx,1,0,3\nx,0,600,0\nx,1,600,0\nx,0,1200,2\nx,1,1200,0\n")
    (tmp_path / "x_token_summary.csv").write_text(
        "category,chunk,timestamp,field,mean,p50\nx,0,0,input_tokens,100,90\nx,1,0,input_tokens,300,290\n"
        "x,0,0,output_tokens,10,9\nx,1,0,output_tokens,30,29\n"
    )
    rates = read_rates(trace)
    assert rates.rates_rps.tolist() == [4.0, 4.0, 2.0]
    assert [t.mean for t in rates.prompt] == [250.0, 250.0, 100.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "header must hold"),
        ("start_s,rate_rps\n0,1\n", "at least two rows"),
        ("start_s,rate_rps\n0,-1\n5,0\n", "line 2, column rate_rps"),
        ("start_s,rate_rps\n5,1\n5,0\n", "does not increase"),
        ("start_s,rate_rps\n0,nan\n5,0\n", "finite"),
        ("start_s,rate_rps\n0,0\n5,0\n", "nothing to replay"),
        ("start_s,rate_rps,prompt_tokens\n0,1,0\n5,0,0\n", "outside 1 to"),
        ("period,count\nyesterday,5\n", "is not a time"),
    ],
)
def test_bad_rate_files_are_refused_with_their_place(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=what) as caught:
        read_rates(path)
    assert "bad.csv" in str(caught.value)


# Oracles.


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 5))
def test_an_ordered_schedule_is_the_least_that_is_ready_in_time(ready: list[int], bins: int) -> None:
    ordered = Schedule(1.0, np.asarray(ready)).ordered(float(bins)).tolist()
    padded = ready + [0] * bins
    assert ordered == [max(padded[k : k + bins + 1]) for k in range(len(ready))]


def test_the_oracle_keeps_the_objective_for_less_than_any_constant() -> None:
    s = setting()
    found = find_schedule(s, 0, budget=60)
    free = find_schedule(s, 0, free_moves=True, budget=60)
    assert found is not None
    assert free is not None
    assert found.lived.attainment >= s.share
    static, _ = tune("static-peak", s, s, KNOWN, 0)
    peak = live(s, controller_of(static, KNOWN), 0)
    assert peak.attainment >= s.share
    assert free.lived.gpu_hours <= found.lived.gpu_hours * 1.02 < peak.gpu_hours


def test_no_oracle_where_even_the_most_replicas_do_not_suffice() -> None:
    assert find_schedule(setting(max_replicas=1), 0, budget=30) is None


def drawn(seed: int) -> Setting:
    """Another draw of the same rates for every seed."""
    parts = [(1.0, 300.0, 0.0), (5.0, 600.0, 300.0), (1.0, 900.0, 600.0)]
    arrivals = [poisson(rate, end_s, 7 * seed + k, start_s) for k, (rate, end_s, start_s) in enumerate(parts)]
    return setting().with_load(Load("steps", Arrivals.joined(arrivals), (60.0, 900.0)))


def test_a_schedule_for_the_rate_alone_keeps_the_objective_on_draws_that_it_was_not_searched_on() -> None:
    found = schedule_for_rate(drawn, budget=40)
    assert found is not None
    runs = [carry_out(found.schedule, drawn(seed), seed) for seed in range(10)]
    assert np.mean([run.attainment for run in runs]) >= drawn(0).share - 0.02
    kept = next(run for run in runs if run.attainment >= drawn(0).share)
    clairvoyant = find_schedule(kept.setting, kept.seed, budget=60)
    assert clairvoyant is not None
    assert clairvoyant.lived.gpu_hours <= 1.02 * kept.gpu_hours
    again = schedule_for_rate(drawn, budget=40)
    assert again is not None
    assert np.array_equal(again.schedule.ready, found.schedule.ready)


def test_a_load_of_one_draw_has_no_rate_to_know() -> None:
    only = setting()
    assert schedule_for_rate(lambda _: only, budget=40) is None


# Tuning and benchmark.


def test_the_cheapest_that_kept_the_objective_wins_else_the_best() -> None:
    trials = [Trial(Choice("a"), 0.995, 3.0), Trial(Choice("b"), 0.991, 2.0), Trial(Choice("c"), 0.9, 1.0)]
    assert best_of(trials, 0.99).policy == "b"
    assert best_of(trials, 0.999).policy == "a"


def test_where_none_kept_it_nothing_is_paid_for_a_few_requests_more() -> None:
    trials = [Trial(Choice("a"), 0.92, 19.0), Trial(Choice("b"), 0.9165, 15.0), Trial(Choice("c"), 0.91, 14.0)]
    assert best_of(trials, 0.99).policy == "b"


@pytest.mark.parametrize("policy", ["hpa", "keda-queue", "kpa", "llmd-slo", "dynamo", "dynamo-dual", "seasonal-naive",
                                    "scheduled", "optscaler"])  # fmt: skip
def test_every_public_policy_has_equally_many_trials_and_lives(policy: str) -> None:
    s = setting()
    offered = candidates(policy, s, KNOWN)
    assert len(offered) == TRIALS
    assert len(candidates("harmony", s, KNOWN)) == TRIALS
    lived = live(s, controller_of(offered[5], KNOWN), 0)
    assert 0.0 <= lived.attainment <= 1.0
    assert lived.gpu_hours > 0


def test_a_load_test_finds_what_the_engine_carries() -> None:
    rate = benchmark_rps(HALF, poisson(1.0, 300.0, 0), OBJECTIVE, 0.99, 0)
    assert rate is not None
    assert 1.0 < rate < 2.0  # eight at once, four seconds each
    assert benchmark_rps(HALF, poisson(1.0, 300.0, 0), Objective(0.1, 1.0), 0.99, 0) is None


# HARMONY's own loop.


def test_harmony_is_the_same_twice_and_follows_the_load() -> None:
    s = setting(step_s=5.0, initial_replicas=2)
    make = harmony_controller(
        HARMONY_VARIANTS["harmony"], 1.5, {"epsilon": 0.05, "paths_verify": 256, "paths_screen": 64}
    )
    first, again = live(s, make, 0), live(s, make, 0)
    counts = [(r.command_s, r.ready_s, r.drain_s) for r in first.replicas]
    assert str(counts) == str([(r.command_s, r.ready_s, r.drain_s) for r in again.replicas])
    during = [r for r in first.replicas if 300 < r.command_s < 500]
    assert during
    assert all(math.isnan(r.ready_s) or r.ready_s == pytest.approx(r.command_s + 20.0) or r.command_s == 0
               for r in first.replicas)  # fmt: skip


# Logs and figures.


def test_every_figure_can_be_computed_from_the_logs(tmp_path: Path) -> None:
    s = setting()
    lived = live(s, controller_of(candidates("hpa", s, KNOWN)[4], KNOWN), 0)
    write_logs(tmp_path, "hpa", lived)
    start, end = s.load.score
    with (tmp_path / "hpa-0" / "requests.csv").open() as lines:
        rows = [r for r in csv.DictReader(lines) if start <= float(r["arrival_s"]) < end]
    good = 0
    for r in rows:
        if r["first_token_s"] and r["finish_s"]:
            first, finish, output = float(r["first_token_s"]), float(r["finish_s"]), int(r["output_tokens"])
            tpot = (finish - first) / (output - 1)
            good += first - float(r["arrival_s"]) <= 2.0 and tpot <= 1.0
    assert good / len(rows) == lived.attainment
    held = 0.0
    with (tmp_path / "hpa-0" / "replicas.csv").open() as lines:
        for r in csv.DictReader(lines):
            release = float(r["release_s"]) if r["release_s"] else end
            held += max(0.0, min(release, end) - max(float(r["command_s"]), start))
    assert held * 2 / 3600 == pytest.approx(lived.gpu_hours)


def test_paired_intervals_hold_a_known_gap() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=60)
    low, high = paired_interval((base + 1 + 0.1 * rng.normal(size=60)).tolist(), base.tolist())
    assert low < 1 < high
    assert high - low < 0.1


# The command.


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


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "either --requests"),
        (["--rate", "ramp", "--policies", "hpa,nonsense"], "Unknown policy 'nonsense'"),
        (["--rate", "ramp", "--min-replicas", "5", "--max-replicas", "2"], "min <= max"),
        (["--rate", "ramp", "--lead-time", "soon"], "--lead-time must be"),
        (["--rate", "ramp", "--lead-time", "-5"], "--lead-time must be"),
        (["--rate", "ramp", "--slo-ttft", "0"], "above 0"),
        (["--rate", "ramp", "--objective", "99"], "--objective"),
        (["--rate", "ramp", "--profile", "no-such"], "no such profile"),
        (["--rate", "ramp", "--slo-tpot", "0.001"], "idle replica"),
        (["--rate", "nowhere.csv"], "cannot be read"),
        (["--rate", "ramp", "--plot-risk", "risk.bmp"], "must end in .png"),
        (["--rate", "ramp", "--no-tune", "--epsilon", "5"], "--epsilon must be between 0 and 1"),
        (["--rate", "ramp", "--epsilon", "0.05"], "give --no-tune"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(arguments: list[str], what: str) -> None:
    code, message = run(*arguments)
    assert code == 2
    assert what in message


@pytest.mark.parametrize(
    ("rows", "what"),
    [("-1,5,5", ">= 0"), ("2,5,5\n1,5,5", "goes back in time"), ("1,0,5", "outside 1"), ("", "no request")],
)
def test_bad_requests_are_refused(tmp_path: Path, rows: str, what: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    code, message = run("--requests", str(path))
    assert code == 2
    assert what in message
