"""A load that surges every hour is prepared for in time and let go at once, from the third one on; in closed loop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from agents.forecast.commit import StateSnapshot, restore_state, snapshot_state
from agents.forecast.engine import masked_rows
from agents.policy import GuardLimits
from agents.workload.state import new_state
from model.bursts.recurring import RecurringSurges
from streams.log import OtherSettings
from streams.windows.table import RecentFacts, Window
from tests.agents.closed_loop import START_MS, STEP_MS, ClosedLoop
from tests.agents.planning.plan_samples import policy, spec

HOUR, LENGTH = 120, 8
HALF_HOUR = HOUR // 2


def held(hours: float, *, expecting: bool) -> list[int]:
    """Replicas slot by slot: 2 requests/s, but 10 in the first two minutes of every half hour."""
    declared = policy(
        spec("w", capacity_rps=2.0, lead_time_s=60.0, max_replicas=32), guards=GuardLimits(warm_up_steps=16)
    )
    declared = replace(declared, recurring_surges=expecting)
    loop, rng, found = ClosedLoop(declared, 2), random.Random(1), []
    for k in range(round(hours * HOUR)):
        times = 5 if k % HALF_HOUR < LENGTH else 1
        arrived = sum(rng.random() < 0.025 * times for _ in range(1_200))
        good = min(arrived, 2.4 * loop.replicas * STEP_MS / 1000)
        found.append(loop.slot(arrived, running=4.0 * times, good=good))
    loop.close()
    said, counted = loop.expected_bursts("surge")
    assert said == counted
    assert (said > 0) == expecting
    return found


def half_hours(counts: Sequence[int], first: int) -> list[Sequence[int]]:
    return [counts[k : k + HALF_HOUR] for k in range(first * HALF_HOUR, len(counts), HALF_HOUR)]


def test_replicas_stand_when_it_begins_and_are_given_up_when_it_is_over() -> None:
    known = half_hours(held(4.0, expecting=True), 6)
    assert len(known) == 2
    for counts in known:
        assert min(counts[:LENGTH]) >= 4
        assert max(counts[LENGTH + 24 : HALF_HOUR - 16]) <= 2
        assert counts[-1] >= 4


def test_without_expecting_it_replicas_are_held_all_the_time() -> None:
    """Surges that come as jumps at any time are insured against at any time, once misses are dear."""
    counts, known = (half_hours(held(4.0, expecting=expecting), 6)[-1] for expecting in (False, True))
    assert max(counts[LENGTH + 16 :]) > 2
    assert sum(counts) > 1.5 * sum(known)


def window(length: int = 96) -> Window:
    values, observed = np.ones((length, 4), np.float32), np.ones((length, 4), np.bool_)
    columns = {"request.arrival_rate": 0, "engine.running": 2}
    return Window("w", columns, values, observed, RecentFacts(None, None, {}, {}), lambda: (values, observed))


@pytest.mark.parametrize(("times", "hidden"), [
    ([], []), ([(START_MS - 4 * STEP_MS, START_MS - 2 * STEP_MS)], [92, 93]),
    ([(START_MS - 2 * STEP_MS, START_MS)], [94, 95]), ([(START_MS - 200 * STEP_MS, START_MS - 95 * STEP_MS)], [0]),
    ([(START_MS - 40 * STEP_MS, START_MS)], []),  # too little would be left
])  # fmt: skip
def test_a_forecaster_is_not_told_of_them(times: list[tuple[int, int]], hidden: list[int]) -> None:
    (row,) = masked_rows([window()], [times], START_MS, 2, STEP_MS, 64)
    assert np.flatnonzero(~row.observed[:, 0]).tolist() == hidden
    assert (row.observed[:, 0] == row.observed[:, 1]).all()


def test_a_commit_record_remembers_them() -> None:
    declared, hour_ms = policy(spec("w")), 3_600_000
    state = new_state("w", declared, 0)
    rows = [[float(START_MS + k * hour_ms), float(START_MS + k * hour_ms + 300_000), 0.1, 6.0, 600.0, 60.0]
            for k in range(4)]  # fmt: skip
    state.surges = RecurringSurges.restore([[float(START_MS + 4 * hour_ms), 5.5], *rows])
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot_state(state)), type=StateSnapshot)
    again = restore_state("w", stored, declared).surges
    assert again.snapshot() == state.surges.snapshot()
    assert [one.begun for one in again.expected(START_MS + 4 * hour_ms + 60_000, START_MS + 4 * hour_ms, STEP_MS)] == [
        True
    ]
    before = msgspec.structs.replace(stored, surges=[])  # of a release that remembered none
    assert restore_state("w", before, declared).surges.snapshot() == []
    with pytest.raises(OtherSettings, match="surges are not stored"):
        restore_state("w", msgspec.structs.replace(stored, surges=[[1.0]]), declared)
