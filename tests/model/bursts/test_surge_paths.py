"""What surges that come again add to paths: as often as their chance says, as they were, and alike in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.bursts.recurring import ExpectedSurge, Recurrence, Surge, surge_paths

STEP_MS, HOUR_MS, PATHS, HORIZON = 15_000, 3_600_000, 4_000, 16
NOW_MS = 1_763_636_400_000


def surges(*lengths_s: int, extra: float = 6.0, spread: float = 0.0) -> Recurrence:
    number = len(lengths_s)
    its = tuple(
        Surge(NOW_MS - (number - k) * HOUR_MS, NOW_MS - (number - k) * HOUR_MS + 1000 * s, spread, (extra, 10 * extra))
        for k, s in enumerate(lengths_s)
    )
    return Recurrence(HOUR_MS, 22_500, its, (0,) * number, number - 1)


def added(*expected: ExpectedSurge, item: str = "w", origin_ms: int = NOW_MS) -> NDArray[np.float32]:
    return surge_paths(expected, item, origin_ms, STEP_MS, (0, 2, -1), (PATHS, HORIZON, 3))


def test_as_many_paths_hold_it_as_its_chance_says() -> None:
    paths = added(ExpectedSurge(NOW_MS + 4 * STEP_MS, 0.75, surges(60, 60, 60), begun=False))
    holding = paths[:, 4, 0] > 0
    assert abs(holding.mean() - 0.75) < 0.03
    assert np.array_equal(paths[holding][:, :, 0], np.tile([0.0] * 4 + [6.0] * 4 + [0.0] * 8, (holding.sum(), 1)))
    assert np.array_equal(paths[..., 2], 10 * paths[..., 0])
    assert not paths[..., 1].any()
    assert not paths[~holding].any()


def test_each_path_takes_one_that_was_there() -> None:
    paths = added(ExpectedSurge(NOW_MS, 1.0, surges(30, 90, 180), begun=False))
    lengths, counts = np.unique((paths[..., 0] > 0).sum(axis=1) * STEP_MS // 1000, return_counts=True)
    assert lengths.tolist() == [30, 90, 180]
    assert (abs(counts / PATHS - 1 / 3) < 0.03).all()


def test_one_under_way_goes_on_as_the_longer_ones_did() -> None:
    paths = added(ExpectedSurge(NOW_MS - 60_000, 1.0, surges(30, 90, 180), begun=True))
    lengths, counts = np.unique((paths[..., 0] > 0).sum(axis=1) * STEP_MS // 1000, return_counts=True)
    assert lengths.tolist() == [30, 120]
    assert (abs(counts / PATHS - 1 / 2) < 0.03).all()


def test_a_step_that_it_shares_holds_its_part() -> None:
    paths = added(ExpectedSurge(NOW_MS + 5_000, 1.0, surges(25, 25, 25), begun=False))
    assert np.allclose(paths[:, :3, 0], [4.0, 6.0, 0.0])


def test_early_and_late_ones_are_drawn_as_they_were() -> None:
    recurrence = surges(30, 30, 30)
    early = Recurrence(HOUR_MS, 22_500, recurrence.surges, (-STEP_MS, STEP_MS, 0), 2)
    paths = added(ExpectedSurge(NOW_MS + 4 * STEP_MS, 1.0, early, begun=False))
    first, counts = np.unique((paths[..., 0] > 0).argmax(axis=1), return_counts=True)
    assert first.tolist() == [3, 4, 5]
    assert (abs(counts / PATHS - 1 / 3) < 0.03).all()


def test_its_steps_differ_as_they_did() -> None:
    paths = added(ExpectedSurge(NOW_MS, 1.0, surges(120, 120, 120, spread=0.2), begun=False))[:, :8, 0]
    assert abs(float(paths.mean()) - 6.0) < 0.05
    assert abs(float(paths.std()) - 1.2) < 0.05


def test_a_row_is_alike_whatever_else_is_asked_and_differs_by_name_and_time() -> None:
    one = ExpectedSurge(NOW_MS + STEP_MS, 0.5, surges(60, 90, 180), begun=False)
    assert np.array_equal(added(one), added(one))
    assert not np.array_equal(added(one), added(one, item="v"))
    assert not np.array_equal(added(one), added(one, origin_ms=NOW_MS + STEP_MS)[:, :, :])
    other = ExpectedSurge(NOW_MS + 12 * STEP_MS, 0.5, surges(30, 30, 30), begun=False)
    both = added(one, other)
    assert np.array_equal(both[:, :12], added(one)[:, :12] + added(other)[:, :12])
    early, late = both[:, 1, 0] > 0, both[:, 13, 0] > 0
    assert abs((early & late).mean() - 0.25) < 0.05  # whether one comes says nothing of the other


def test_nothing_expected_adds_nothing() -> None:
    assert not added().any()
