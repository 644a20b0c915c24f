"""A load that jumps at any time is prepared for once it has done so a few times; in closed loop."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from agents.forecast.bursts import with_jumps
from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.forecast.workloads import NO_INPUTS
from agents.policy import GuardLimits, Slo
from agents.records import JumpsAhead
from agents.workload.state import Subject, new_state
from model.bursts.jumps import Jumps
from model.contract import ForecastBatch
from streams.log import OtherSettings
from streams.windows.table import RecentFacts, Window
from tests.agents.closed_loop import STEP_MS, ClosedLoop
from tests.agents.planning.plan_samples import policy, spec
from tests.model.batches import ORIGIN_MS, context_batch

HOUR, LENGTH = 240, 12


def held_before_the_last(*, expecting: bool) -> int:
    """Replicas just before the last of six jumps, from 2 to 10 requests/s for three minutes, at no time of a clock.

    A miss in a thousand is allowed: at one in a hundred such jumps cost less than the replicas for them.
    """
    declared = policy(
        spec("w", capacity_rps=2.0, lead_time_s=60.0, max_replicas=32, slo=Slo(objective=0.999)),
        guards=GuardLimits(warm_up_steps=16),
    )
    declared = replace(declared, jumps=expecting, recurring_surges=False)
    loop, rng = ClosedLoop(declared, 2), random.Random(3)
    for _ in range(6):
        for k in range(LENGTH + HOUR // 2 + rng.randrange(HOUR // 2)):
            times = 5 if k < LENGTH else 1
            arrived = sum(rng.random() < 0.025 * times for _ in range(1_200))
            good = min(arrived, 2.4 * loop.replicas * STEP_MS / 1000)
            loop.slot(arrived, running=4.0 * times, good=good)
    loop.close()
    said, counted = loop.expected_bursts("jumps")
    assert said == counted
    assert (said > 0) == expecting
    return loop.replicas


def test_replicas_stand_before_a_jump_that_nothing_foretells() -> None:
    """Without expecting them, the price that misses of the day have raised buys less than they need."""
    assert held_before_the_last(expecting=True) >= 4 > held_before_the_last(expecting=False)


def subject(jumps: Jumps) -> Subject:
    values, observed = np.ones((96, 3), np.float32), np.ones((96, 3), np.bool_)
    window = Window("w", {}, values, observed, RecentFacts(None, None, {}, {}), lambda: (values, observed))
    state = new_state("w", policy(spec("w")), 0)
    state.jumps = jumps
    return Subject(window, state, NO_INPUTS, None, None, None, None)


def test_a_request_more_is_as_many_tokens_more_as_one_has_and_rows_without_jumps_keep_every_bit() -> None:
    seen = torch.ones(2, 96, 3) * torch.tensor([2.0, 200.0, 40.0])
    seen[:, ::7, 1] = torch.nan
    batch = replace(
        context_batch(seen, num_demand=3),
        indicators=("request.arrival_rate", "request.prompt_token_rate", "engine.running"),
    )
    paths = torch.ones(2, 400, 16, 3) * torch.tensor([2.0, 200.0, 40.0])
    forecast = ForecastBatch(paths.clone(), ("pool", "pool"), "m")
    jumps = Jumps.restore([[5.4e6, 0.0], *([float(ORIGIN_MS), 2.0, end] for end in (8.0, 8.0, 9.0))])
    without, said = with_jumps(forecast, [subject(Jumps()), subject(jumps)], batch, ORIGIN_MS, recurring=True)
    assert without is None
    assert said == JumpsAhead(3600.0 * 2 / 9000, 6.0, 3)
    assert torch.equal(forecast.paths[0], paths[0])
    more = forecast.paths[1] - paths[1]
    assert set(more[..., 0].unique().tolist()) == {0.0, 6.0}
    assert torch.allclose(more[..., 1], more[..., 0] * 100)
    assert not more[..., 2].any()


def test_a_commit_record_remembers_them() -> None:
    declared = policy(spec("w"))
    state = new_state("w", declared, 0)
    state.jumps = Jumps.restore([[5.4e6, 1.0, 3e12, 2.0, 9.5], [1e12, 2.0, 8.0], [2e12, 1.5, 9.0]])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot_state(state)), type=StateSnapshot)
    assert restore_state("w", stored, declared).jumps.snapshot() == state.jumps.snapshot()
    before = msgspec.structs.replace(stored, jumps=[])  # of a release that remembered none
    assert restore_state("w", before, declared).jumps.snapshot() == []
    with pytest.raises(OtherSettings, match="jumps are not stored"):
        restore_state("w", msgspec.structs.replace(stored, jumps=[[1.0]]), declared)
