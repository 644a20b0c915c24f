from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.demo.workloads import Delayed, demo_fleet, demo_policy, demo_workloads, trace_workload
from infra.simulator.arrivals import (
    BLOCK_S,
    Arrivals,
    GeneratedLoad,
    LoadShape,
    TokenShape,
    Trace,
)
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile, ProfileError, load_profile, named_profile
from infra.simulator.traces import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99,396,109\n"
SHAPE = LoadShape(5.0, TokenShape(500, 0.8), TokenShape(100, 0.6), period_s=3_600.0)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(st.lists(st.floats(0, 4 * BLOCK_S), min_size=0, max_size=6))
def test_generated_load_is_the_same_however_time_is_cut(cuts: list[float]) -> None:
    end_s = 4.0 * BLOCK_S
    whole = GeneratedLoad(SHAPE, 3).between(0.0, end_s)
    edges = [0.0, *sorted(cuts), end_s]
    load = GeneratedLoad(SHAPE, 3)
    parts = Arrivals.joined([load.between(a, b) for a, b in pairwise(edges)])
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
    assert np.all(np.diff(whole.arrival_s) >= 0)


def test_generated_load_has_the_stated_means_and_another_seed_is_another_load() -> None:
    load = GeneratedLoad(SHAPE, 5).between(0.0, 6 * 3_600.0)
    assert len(load) / (6 * 3_600) == pytest.approx(5.0, rel=0.03)
    assert load.prompt_tokens.mean() == pytest.approx(500, rel=0.02)
    assert load.output_tokens.mean() == pytest.approx(100, rel=0.02)
    assert load.prompt_tokens.min() >= 1
    other = GeneratedLoad(SHAPE, 6).between(0.0, 100.0)
    assert not np.array_equal(other.arrival_s, load.between(0.0, 100.0).arrival_s)


def test_the_day_has_the_stated_shape() -> None:
    shape = LoadShape(20.0, TokenShape(10, 0.1), TokenShape(10, 0.1), 3_600.0, (0.8,), (0.0,), noise=0.0)
    load = GeneratedLoad(shape, 1).between(0.0, 3_600.0)
    quarters = np.bincount((load.arrival_s // 900).astype(int)) / 900
    # The mean of sin over a half wave is 2/pi.
    up, down = 20 * (1 + 0.8 * 2 / math.pi), 20 * (1 - 0.8 * 2 / math.pi)
    assert quarters == pytest.approx([up, up, down, down], rel=0.05)


def test_scheduled_batches_and_bursts_raise_the_rate_when_they_should() -> None:
    at_s = np.arange(0.0, 7_200.0, 1.0)
    calm = LoadShape(10.0, TokenShape(10, 0.1), TokenShape(10, 0.1), amplitudes=(0.0,), noise=0.0)
    batch = LoadShape(
        10.0, TokenShape(10, 0.1), TokenShape(10, 0.1), amplitudes=(0.0,), noise=0.0,
        batch_every_s=600, batch_factor=3.0, batch_s=60,
    )  # fmt: skip
    burst = LoadShape(
        10.0, TokenShape(10, 0.1), TokenShape(10, 0.1), amplitudes=(0.0,), noise=0.0,
        bursts_per_hour=3, burst_factor=4.0,
    )  # fmt: skip
    assert np.all(GeneratedLoad(calm, 1).rate(at_s) == 10.0)
    rate = GeneratedLoad(batch, 1).rate(at_s)
    assert np.all((rate == 30.0) == (at_s % 600 < 60))
    rate = GeneratedLoad(burst, 1).rate(at_s)
    assert rate.min() == 10.0
    assert 20.0 < rate.max() <= 40.0


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="phases"):
        LoadShape(1.0, TokenShape(1, 0.1), TokenShape(1, 0.1), amplitudes=(0.1, 0.2))
    with pytest.raises(ValueError, match="positive"):
        LoadShape(0.0, TokenShape(1, 0.1), TokenShape(1, 0.1))
    with pytest.raises(ValueError, match="infinity"):
        GeneratedLoad(SHAPE, 0).between(0.0, math.inf)


def test_a_delayed_source_keeps_its_wall_time(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "conv.csv", AZURE))
    late = Delayed(trace, 2.5)
    assert late.start_ts_ms == trace.start_ts_ms - 2_500
    assert late.between(0.0, 100.0).arrival_s.tolist() == [a + 2.5 for a in trace.arrivals.arrival_s.tolist()]
    assert len(late.between(0.0, 2.5)) == 0


def test_a_trace_becomes_one_workload_on_the_slot_grid(tmp_path: Path) -> None:
    path = write(tmp_path / "conv.csv", AZURE)
    fleet = demo_fleet(path, with_generated=False)
    assert [w.spec.id for w in fleet.workloads] == ["trace/conv"]
    assert fleet.trace == "trace/conv"
    assert fleet.start_ts_ms == 1_700_158_545_000
    assert fleet.workloads[0].source.between(0.0, 2.0).arrival_s.tolist() == pytest.approx([1.68059])
    assert len(demo_fleet(path).workloads) == 1 + len(demo_workloads())


def test_the_demo_policy_declares_what_the_demo_fleet_runs() -> None:
    fleet = demo_fleet()
    policy = demo_policy(fleet)
    assert math.isinf(fleet.end_s)
    for workload in fleet.workloads:
        assert policy.spec(workload.spec.id) == workload.spec
        assert workload.spec.mode == "act"
        assert workload.spec.gpus_per_replica == workload.profile.gpus_per_replica


def test_bounds_of_a_trace_leave_room_above_its_busiest_minute() -> None:
    n = 3_000
    arrivals = Arrivals(np.arange(n) / 50, np.full(n, 1_000), np.full(n, 200))
    spec = trace_workload(Trace("t", arrivals)).spec
    rate = BUILT_IN_PROFILES["dense-70b"].steady_rate(1_000, 200, 0.2)
    assert spec.max_replicas * rate > 1.5 * 50


def test_profiles_load_as_published_and_say_what_is_wrong(tmp_path: Path, data_dir: Path) -> None:
    for path in (data_dir / "replay-profiles").glob("*.json"):
        assert load_profile(path).name == path.stem
        assert named_profile(str(path)) == load_profile(path)


def profile_file(tmp_path: Path, **changes: object) -> Path:
    p = BUILT_IN_PROFILES["dense-70b"]
    body = {name: getattr(p, name) for name in EngineProfile.__dataclass_fields__} | changes
    return write(tmp_path / "p.json", json.dumps({k: v for k, v in body.items() if v is not None}))


def test_a_profile_file_is_read_back(tmp_path: Path) -> None:
    assert load_profile(profile_file(tmp_path, fit="by eye")) == BUILT_IN_PROFILES["dense-70b"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"base_s": None}, "lacks base_s"),
        ({"base_s": 0}, "base_s must be above 0"),
        ({"base_s": "fast"}, "base_s must be a finite number"),
        ({"max_batch": 1.5}, "max_batch must be an integer"),
        ({"max_batch": 10**400}, "max_batch must be at most"),
        ({"base_s": 10**400}, "base_s must be at most"),
        ({"kv_capacity_tokens": 0}, "kv_capacity_tokens must be an integer >= 1"),
        ({"admission_watermark": 1.0}, "admission_watermark must be below 1"),
        ({"gpu_count": 2}, "unknown field 'gpu_count'"),
        ({"name": 7}, "name must be a text"),
    ],
)
def test_a_bad_profile_is_named(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        load_profile(profile_file(tmp_path, **changes))


def test_profile_files_that_are_no_profile(tmp_path: Path) -> None:
    longer = (b"9" * 10_000, "longer and deeper"), (b"[" * 200_000, "longer and deeper")
    for body, complaint in ((b"{", "line 1: is not JSON"), (b"[]", "holds a list"), (b"\xff", "not UTF-8"), *longer):
        with pytest.raises(ProfileError, match=complaint):
            load_profile(write(tmp_path / "p.json", body))
    with pytest.raises(ProfileError, match="no such profile; give a profile JSON file, or one of dense-70b"):
        named_profile("dense-71b")
