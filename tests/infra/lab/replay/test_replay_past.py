"""Days before the one that is replayed: HARMONY's week holds them, as a worker's that saw them would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from infra.lab.replay.policies.harmony import policy_of
from infra.lab.replay.prepare import CellOptions, day_cell
from infra.lab.replay.setting import START_TS_MS, PriorDays, prior_days
from infra.lab.replay.simulation import HarmonyController
from infra.simulator.cluster import Cluster
from infra.simulator.ledger import Objective
from infra.simulator.profiles import named_profile
from infra.simulator.rate_files import read_rates
from model.baselines.ridge import RidgeForecaster
from model.bursts.recurring import RecurringSurges
from tests.infra.lab.replay.replay_setting import setting


def test_they_are_another_draw_of_the_file_up_to_the_lead_in(tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    hours = [f"{3600 * h},{2 if h % 24 in (9, 10) else 0.5}" for h in range(72)]
    path.write_text("\n".join(["start_s,rate_rps", *hours, "259200,0"]))
    options = CellOptions(named_profile("dense-70b"), Objective(5.0, 0.2), 0.99, 100.0, 0.0, 1, 8, 15.0, past_days=7)
    made = day_cell(read_rates(path), 2, None, options).scored(0)
    assert made.past is not None
    past = made.past.means
    assert past.shape == (46 * 6, 3)  # two days but for the lead-in
    assert past[9 * 6 : 11 * 6, 0].mean() == pytest.approx(2.0, rel=0.1)
    assert past[11 * 6 : 32 * 6, 0].mean() == pytest.approx(0.5, rel=0.1)
    assert (past[:, 1].sum() / past[:, 0].sum(), past[:, 2].sum() / past[:, 0].sum()) == (
        pytest.approx(1_000, rel=0.1), pytest.approx(200, rel=0.1),
    )  # fmt: skip
    assert made.start_ts_ms - START_TS_MS == 46 * 3_600_000
    one = day_cell(read_rates(path), 2, None, replace(options, past_days=1)).scored(0).past
    assert one is not None
    assert len(one.means) == 24 * 6
    alone = day_cell(read_rates(path), 2, None, replace(options, past_days=0)).scored(0)
    assert (alone.past, alone.start_ts_ms) == (None, START_TS_MS)


def test_they_stand_in_the_week_of_the_loop() -> None:
    past = np.arange(36, dtype=np.float64).reshape(12, 3) / 8
    surges = [[], *([float(START_TS_MS - hour * 3_600_000), float(START_TS_MS - hour * 3_600_000 + 300_000), 0.1, 6.0,
                     0.0, 0.0] for hour in (4, 3, 2, 1))]  # fmt: skip
    s = setting(step_s=5.0, past=PriorDays(past, surges))
    cluster = Cluster(s.profile, s.initial_replicas, s.lead_time(0), s.objective)
    cluster.feed(s.load.arrivals)
    controller = HarmonyController(s, cluster, policy_of(s, 1.1), RidgeForecaster(), 0)
    while controller.next_s < 700.0:
        cluster.advance(controller.next_s)
        controller.act()
    table = controller.loop.forecast.table
    (window,) = table.windows(list(table))
    (known,) = controller.loop.forecast.state_of(window.workload).surges.recurrences(5_000)
    controller.close()
    assert (known.period_ms, [surge.start_ms for surge in known.surges]) == (3_600_000, [row[0] for row in surges[1:]])
    means, seen = window.read_coarse()
    assert np.array_equal(means[-13:-1], past.astype(np.float32))  # then come the first ten minutes of its own
    assert seen[-13:].all()
    assert not seen[:-13].any()
    assert means[-1, 0] == pytest.approx(3.0, rel=0.2)


def test_surges_of_the_days_before_are_remembered() -> None:
    past = prior_days(read_rates("hourly"), 3, 15.0, START_TS_MS)
    (known,) = RecurringSurges.restore(past.surges).recurrences(15_000)
    assert (known.period_ms, len(known.surges)) == (3_600_000, 24)
    # It ended at a midnight: the last one was at half past eleven.
    assert known.surges[-1].start_ms == START_TS_MS - 1_800_000
    assert known.surges[-1].extra == pytest.approx((6.0, 6.0 * 900, 6.0 * 200), rel=0.15)
