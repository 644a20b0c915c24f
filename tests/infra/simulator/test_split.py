"""Prefill and decode apart or together: laws of the goodput of both modes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from infra.simulator.arrivals import Arrivals, Tokens
from infra.simulator.ledger import Objective
from infra.simulator.profiles import BUILT_IN_PROFILES, EngineProfile
from infra.simulator.split import ServingModes, serving_modes

OPT = BUILT_IN_PROFILES["opt13b-a100"]
SHARE, SEED = 0.9, 7


def lengths(prompt: float, output: float) -> Arrivals:
    rng = np.random.default_rng(SEED)
    return Arrivals(np.zeros(500), Tokens(prompt, 0.5).draw(rng, 500), Tokens(output, 0.5).draw(rng, 500))


@cache
def modes(
    prompt: float,
    output: float,
    ttft_s: float,
    tpot_s: float,
    profile: EngineProfile = OPT,
    handover_token_s: float = 0.0,
) -> ServingModes:
    return serving_modes(
        profile, lengths(prompt, output), Objective(ttft_s, tpot_s), SHARE, SEED, handover_token_s, chunks=(2048,)
    )


def test_a_tight_time_per_token_is_worth_pools_of_their_own() -> None:
    """Together, the decoding requests wait for the prompts; DistServe reports up to 4.5 times the goodput."""
    tight, loose = modes(512, 64, 0.4, 0.04), modes(512, 64, 4.0, 0.4)
    assert tight.better() == "split"
    assert tight.split_per_gpu_rps > 1.3 * tight.together_per_gpu_rps
    gain, loose_gain = (mode.split_per_gpu_rps / mode.together_per_gpu_rps for mode in (tight, loose))
    assert gain > 1.2 * loose_gain


def test_times_scale() -> None:
    """An engine twice as slow serves half the load within limits twice as long."""
    slow = replace(
        OPT, base_s=2 * OPT.base_s, prefill_token_s=2 * OPT.prefill_token_s, sequence_s=2 * OPT.sequence_s,
        kv_token_s=2 * OPT.kv_token_s, prefill_token_sq_s=2 * OPT.prefill_token_sq_s,
    )  # fmt: skip
    fast, slower = modes(512, 64, 0.4, 0.06), modes(512, 64, 0.8, 0.12, slow)
    assert slower.together_per_gpu_rps == pytest.approx(fast.together_per_gpu_rps / 2, rel=0.1)
    assert slower.split_per_gpu_rps == pytest.approx(fast.split_per_gpu_rps / 2, rel=0.1)


def test_a_slow_handover_costs_goodput() -> None:
    assert modes(512, 64, 0.4, 0.04, OPT, 1e-3).split_per_gpu_rps < modes(512, 64, 0.4, 0.04).split_per_gpu_rps


def test_single_prompts_beyond_the_limit_are_kept_by_no_mode() -> None:
    none = modes(4_000, 64, 0.2, 0.04)
    assert none.together_rps is None
    assert none.prefill_rps is None
    assert (none.together_per_gpu_rps, none.split_per_gpu_rps) == (0.0, 0.0)
    assert none.gpus(10.0) == {}


def test_answers_of_one_token_need_no_decode_pool() -> None:
    one = Arrivals(np.zeros(50), np.full(50, 300), np.ones(50, np.int64))
    found = serving_modes(OPT, one, Objective(1.0, 0.1), SHARE, SEED, chunks=())
    assert found.prefill_rps is not None
    assert found.split_per_gpu_rps == pytest.approx(found.prefill_rps)
    assert found.gpus(0.5 * found.prefill_rps) == {"together": 1, "split": 2}


def test_whole_replicas_decide_where_a_load_is_given() -> None:
    known = ServingModes(2.0, 10.0, 5.0, 512, 512, 2)
    assert known.split_per_gpu_rps == pytest.approx(10.0 / 3.0 / 2.0)
    assert known.better() == "split"
    assert known.gpus(1.9) == {"together": 2, "split": 4}
    assert known.better(1.9) == "together"
    assert known.gpus(20.0) == {"together": 20, "split": 12}
    assert known.better(20.0) == "split"
