"""`harmony.plan` and `harmony.replay`: the worker's stages and the replay, called from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infra import api
from infra.lab.replay.job import ReplayRequest, measure

pd = pytest.importorskip("pandas", reason="pandas is not installed (extra `pandas`)")

RULES = ("static-peak", "hpa")


def load(rps: float | np.ndarray, rows: int = 80, **columns: Any) -> Any:
    times = pd.date_range("2026-01-01", periods=rows, freq="15s")
    return pd.DataFrame({"timestamp": times, "target": rps} | columns)


def plan(df: Any, **options: Any) -> Any:
    return api.plan(df, **({"capacity_rps": 2.0, "replicas": 4, "max_replicas": 30} | options))


def test_a_plan_grows_and_shrinks_with_the_load() -> None:
    rng = np.random.default_rng(0)
    low, high = (plan(load(rng.poisson(rps * 15, 80) / 15)) for rps in (1.0, 12.0))
    assert (low.action, high.action) == ("down", "up")
    assert high.replicas.final > 4 > low.replicas.final
    assert high.replicas.current == 4
    assert high.mode == "observe"
    assert high.command_id is None
    capacity = high.capacity_per_replica
    assert dict(zip(capacity.levels, capacity.values, strict=True))[0.5] == pytest.approx(2.0, rel=1e-2)
    text = api.explain(high)
    assert text.splitlines()[0].startswith("load would grow from 4 to ")
    # Piped or pasted text is never wrapped.
    assert any(len(line) > 120 for line in text.splitlines())


def test_a_plan_keeps_the_bounds_and_holds_behind_a_hole() -> None:
    assert plan(load(50.0), max_replicas=5).replicas.final == 5
    silent = load(50.0)
    silent.loc[76:, "target"] = None
    held = plan(silent)
    assert (held.action, held.replicas.final) == ("hold", 4)


def test_a_plan_reads_the_end_of_a_long_load() -> None:
    long = load(np.r_[np.full(400, 1.0), np.full(600, 10.0)], 1000)
    assert plan(long).replicas == plan(long.tail(512)).replicas


@pytest.mark.parametrize(
    ("df", "options", "words"),
    [
        (load(1.0, 20), {}, "df: holds 20 steps; a plan needs 32"),
        (load(-1.0), {}, "none negative"),
        (load(1.0, item_id=["a"] * 40 + ["b"] * 40), {}, "df: holds 2 items; plan one at a time"),
        (load(1.0), {"capacity_rps": 0.0}, "capacity_rps: 0.0 must be a number above 0"),
        (load(1.0), {"lead_time": 1e6}, "lead_time: 1000000.0 must be at most a day"),
        (load(1.0), {"objective": 99}, "objective: 99 must be between 0 and 1"),
        (load(1.0), {"max_replicas": 2, "min_replicas": 3}, "max_replicas: 2 must be a whole number of 3 to"),
        (load(1.0), {"replicas": -1}, "replicas: -1"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(df: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(api.InputError, match=words):
        plan(df, **options)


def test_a_replay_is_the_one_of_the_command() -> None:
    said: list[str] = []
    options = {"slo_ttft": 3.0, "slo_tpot": 0.1, "tune": False, "oracle": 0, "profile": "dense-13b"}
    result = api.replay("ramp", RULES, progress=said.append, **options)
    document = measure(
        ReplayRequest(rate="ramp", policies=",".join(RULES), seeds=1, **options), lambda *_: None
    ).document
    assert result.document == document
    assert [run.policy for run in result.runs] == [*RULES]
    assert result.to_frame().gpu_hours.tolist() == [row["gpu_hours"] for row in document["policies"]]
    assert result.oracle_gpu_hours is None
    assert said[:2] == ["ramp: static-peak", "ramp: hpa"]


def test_frames_of_rates_and_of_requests_are_loads() -> None:
    options = {"slo_ttft": 3.0, "slo_tpot": 0.1, "tune": False}
    rates = api.replay(load(np.repeat([2.0, 4.0], 60), 120), ["static-peak"], **options)
    assert 0.9 < rates.runs[0].attainment <= 1.0
    arrival_s = np.cumsum(np.full(2000, 0.5))
    requests = pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": 500, "output_tokens": 100})
    assert api.replay(requests, ["static-peak"], **options).load == "df"


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("nowhere.csv", {}, r"nowhere.csv: cannot be read"),
        ("ramp", {"policies": ["harmony", "magic"]}, "Unknown policy 'magic'"),
        ("ramp", {"profile": "abacus"}, "abacus"),
        ("ramp", {"lead_time": -1}, "lead_time must be seconds above 0"),
        ("ramp", {"max_replicas": 0}, "Replica bounds"),
        ("ramp", {"seeds": 0}, "seeds: 0"),
        ("ramp", {"step": 0.0}, "step: 0.0"),
        ("ramp", {"slo_ttft": 0.001}, "Relax slo_ttft or slo_tpot"),
        (load(0.0), {}, "not all 0"),
        (load(1.0, item_id=["a"] * 40 + ["b"] * 40), {}, "replay one at a time"),
        (pd.DataFrame({"arrival_s": [2.0, 1.0], "prompt_tokens": 5, "output_tokens": 5}), {}, "df, row 1, column arr"),
        (pd.DataFrame({"arrival_s": [2.0, 3.0], "prompt_tokens": 5}), {}, "no column 'output_tokens'"),
        (pd.DataFrame({"arrival_s": [2.0, 3.0], "prompt_tokens": 5, "output_tokens": [1.5, 2]}), {}, "whole number"),
    ],
)
def test_a_replay_that_cannot_be_made_says_why(source: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(api.InputError, match=words) as caught:
        api.replay(source, **({"policies": ["static-peak"], "tune": False} | options))
    assert "--" not in str(caught.value)
