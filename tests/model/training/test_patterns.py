"""Families of patterns: jobs keep their time, events their shape, counts excite each other."""

from __future__ import annotations

import numpy as np
import pytest

from model.network.features import extract_features
from model.network.spec import NetworkSpec
from model.training.patterns import TIMELESS, events, flat, jobs, level_shifts, self_exciting, smooth
from model.training.synthetic import draw_example


@pytest.mark.parametrize("seed", range(16))
def test_batches_of_patterns_are_finite_repeatable_and_leave_other_batches_as_they_are(seed: int) -> None:
    drawn, again = draw_example(seed, 32, patterns=1.0), draw_example(seed, 32, patterns=1.0)
    assert np.array_equal(drawn.batch.values, again.batch.values)
    assert drawn.target.isfinite().all()
    assert (drawn.target >= 0).all()
    assert drawn.target.shape[1] == 64
    features = extract_features(drawn.batch, NetworkSpec())
    assert features.tokens.isfinite().all()
    assert features.candidates.z.isfinite().all()
    plain = [draw_example(seed, 32, patterns=share) for share in (1e-9, 0.0)]
    assert np.array_equal(plain[0].target, plain[1].target)
    loads = [draw_example(seed, 32, 1.0, share) for share in (0.0, 1e-9)]
    assert np.array_equal(loads[0].target, loads[1].target)


@pytest.mark.parametrize("family", list(TIMELESS))
def test_families_are_never_negative_and_move(family: str) -> None:
    drawn = TIMELESS[family](np.random.default_rng(1), 30, 400)
    assert drawn.values.shape == drawn.starts.shape == (30, 400)
    assert np.isfinite(drawn.values).all()
    assert (drawn.values >= 0).all()
    assert (drawn.values.std(axis=1) > 0).mean() > 0.9


def test_most_jobs_start_at_the_same_minute_of_several_days() -> None:
    drawn = jobs(np.random.default_rng(2), 60, 8 * 1440, 60.0, 0)
    minutes = [np.flatnonzero(starts) % 1440 for starts in drawn.starts]
    repeated = [np.bincount(minute, minlength=1440).max() for minute in minutes if len(minute)]
    assert np.median(repeated) >= 5


def test_a_job_raises_the_load_where_it_starts() -> None:
    drawn = jobs(np.random.default_rng(3), 60, 8 * 144, 600.0, 0)
    change = np.abs(drawn.values[:, 1:] - drawn.values[:, :-1]) / drawn.values.mean(axis=1, keepdims=True)
    assert np.median(change[drawn.starts[:, 1:]]) > 2 * np.median(change[~drawn.starts[:, 1:]])


def test_events_of_a_series_have_one_shape() -> None:
    drawn = events(np.random.default_rng(4), 60, 1200)
    alike = []
    for values, starts in zip(drawn.values, drawn.starts, strict=True):
        begun = np.flatnonzero(starts)
        begun = begun[(np.diff(begun, append=1200) > 12) & (begun < 1100)]
        if len(begun) >= 2:
            first, second = (values[start : start + 12] for start in begun[:2])
            if first.std() == 0 or second.std() == 0:  # at the floor from the first row on
                continue
            alike.append(np.corrcoef(first, second)[0, 1])
    assert len(alike) > 20
    assert np.median(alike) > 0.7


def test_flat_series_stay_at_their_level_and_smooth_ones_change_little_from_row_to_row() -> None:
    level = flat(np.random.default_rng(5), 100, 300).values
    assert (level.std(axis=1) / level.mean(axis=1)).max() < 0.12
    course = smooth(np.random.default_rng(6), 100, 300).values
    steps = np.abs(np.diff(course, axis=1)).mean(axis=1) / course.std(axis=1)
    assert np.median(steps) < 0.5


def test_counts_that_excite_each_other_vary_more_than_by_chance() -> None:
    counts = self_exciting(np.random.default_rng(7), 300, 2000).values
    assert (counts == np.round(counts)).all()
    sums = counts.reshape(300, 40, 50).sum(axis=2)
    assert np.median(sums.var(axis=1) / sums.mean(axis=1)) > 1.5  # 1 is Poisson's


def test_levels_shift_rarely_and_far() -> None:
    drawn = level_shifts(np.random.default_rng(8), 200, 600)
    log = np.log(np.maximum(drawn.values, 1e-9))
    change = np.abs(np.diff(log, axis=1))
    assert 1 <= np.median(drawn.starts.sum(axis=1)) <= 30
    assert np.median(change[drawn.starts[:, 1:]]) > 2 * np.median(change[~drawn.starts[:, 1:]])
