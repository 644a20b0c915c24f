"""The rolling protocol: origins and units as written down, no look at the future, scores against another library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.baselines.ridge import RidgeForecaster
from model.evaluation import contestants as averages
from model.evaluation import contestants as baselines
from model.evaluation.contestants import ridge
from model.evaluation.rolling import (
    Indicator,
    RollingCase,
    SeriesItem,
    Task,
    fill_forward,
    item_scales,
    origin_rows,
    season_in_use,
    split_rows,
    without_test_rows,
)
from model.evaluation.rolling_scores import (
    by_indicator,
    headline,
    join_cells,
    pooled_interval,
    relative,
    relative_interval,
    resampled_rows,
    score_case,
    task_metric,
)
from model.evaluation.scores import crps_of_paths, energy_score, pinball, probability_integral
from model.evaluation.served import context_batch, rolling_contestant

CONTESTANTS = {
    "snaive": baselines.seasonal_naive,
    "last": baselines.last_value,
    "clim": baselines.climatology,
    "clim_recent": baselines.recent_climatology,
    "seasclim": baselines.seasonal_climatology,
    "ewma": baselines.ewma,
    "ridge": ridge,
    "ens": averages.quantile_average(["ridge", "ewma"], "seasclim"),
    "served": rolling_contestant(RidgeForecaster()),
}


def make_task(seed: int = 0, *, num_rows: int = 600, season: int = 24, missing: bool = True) -> Task:
    rng = np.random.default_rng(seed)
    t = np.arange(num_rows)[:, None]
    values = 20 + 5 * np.sin(2 * np.pi * t / season + np.array([0.0, 1.0])) + rng.normal(size=(num_rows, 2))
    if missing:
        values[rng.random(values.shape) < 0.02] = np.nan
    train_end, test_start, zero_start = split_rows(num_rows, 200, 12)
    item = SeriesItem("a", 946_684_800_000, values, train_end, test_start, zero_start)
    other = replace(item, item_id="b", values=3 * values[::-1])
    indicators = (Indicator("x", lower=0.0), Indicator("y", level=2, lower=0.0))
    return Task("t", 60, indicators, (1, 12), 200, (season,), 15, mixed_units=False, items=(item, other))


def test_splits_are_sixty_twenty_twenty() -> None:
    assert split_rows(1000, 100, 12) == (600, 800, 100)
    assert split_rows(350, 120, 12) == (210, 280, 87)
    assert split_rows(720, 240, 24, test_start=500) == (375, 500, 180)


@given(st.integers(50, 400), st.integers(1, 48), st.integers(1, 30))
@settings(deadline=None)
def test_origins_stay_inside_and_are_thinned_evenly(num_rows: int, horizon: int, cap: int) -> None:
    first = num_rows // 2
    origins = origin_rows(first, num_rows, horizon, cap)
    assert len(origins) <= cap
    if num_rows - first < horizon:
        assert len(origins) == 0
        return
    assert origins[0] == first - 1
    assert origins[-1] + horizon <= num_rows - 1
    assert len(np.unique(origins)) == len(origins)
    every = np.arange(first - 1, num_rows - horizon, max(1, horizon // 2))
    assert set(origins) <= set(every)
    assert len(origins) == min(cap, len(every))


def test_the_season_must_fit_twice() -> None:
    assert season_in_use((144, 1008), 288 + 12, 12) == 144
    assert season_in_use((144, 1008), 299, 12) == 1
    assert season_in_use((), 1000, 12) == 1


def test_gaps_are_filled_from_the_past_only() -> None:
    x = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [5.0, 4.0]])
    np.testing.assert_array_equal(fill_forward(x), [[2, 1], [2, 1], [2, 1], [5, 4]])


@pytest.mark.parametrize("name", CONTESTANTS)
@pytest.mark.parametrize("track", ["local", "zeroshot"])
def test_nobody_sees_the_future(name: str, track: str) -> None:
    task = make_task()
    origin = int(RollingCase(task, task.items[0], 12, track, CONTESTANTS).origins[2])  # type: ignore[arg-type]
    answers = []
    for future in (0.0, 1e6):
        values = task.items[0].values.copy()
        values[origin + 1 :] = future
        case = RollingCase(task, replace(task.items[0], values=values), 12, track, CONTESTANTS)  # type: ignore[arg-type]
        keep = case.origins <= origin
        case.origins = case.origins[keep]
        if track == "local":  # rows before the test part may be fitted on: they are the same in both
            assert case.first_target <= origin + 1
        answers.append(case.forecast_of(name)[-1])
    np.testing.assert_array_equal(answers[0], answers[1])


@pytest.mark.parametrize("name", CONTESTANTS)
def test_answers_have_the_shape_and_keep_the_bounds(name: str) -> None:
    task = make_task()
    case = RollingCase(task, task.items[0], 12, "local", CONTESTANTS)
    paths = case.forecast_of(name)
    assert paths.shape == (len(case.origins), 200, 12, 2)
    assert np.isfinite(paths).all()
    assert paths.min() >= 0
    np.testing.assert_array_equal(paths, RollingCase(task, task.items[0], 12, "local", CONTESTANTS).forecast_of(name))


def test_last_value_paths_are_seen_changes() -> None:
    x = np.arange(100.0)[:, None] * 2
    item = SeriesItem("a", 0, x, 60, 80, 25)
    task = Task("t", 1, (Indicator("x"),), (5,), 50, (), 10, mixed_units=False, items=(item,))
    case = RollingCase(task, item, 5, "local", CONTESTANTS)
    want = x[case.origins][:, None, None] + 2 * np.arange(1, 6)[None, None, :, None]
    np.testing.assert_allclose(case.forecast_of("last"), np.broadcast_to(want, (len(case.origins), 200, 5, 1)))


def test_averages_keep_ranks_and_average_quantiles() -> None:
    task = make_task()
    case = RollingCase(task, task.items[0], 12, "local", CONTESTANTS)
    pooled, order = case.forecast_of("ens"), case.forecast_of("ridge")
    members = [np.sort(case.forecast_of(name), axis=1) for name in ("ridge", "ewma", "seasclim")]
    np.testing.assert_allclose(np.sort(pooled, axis=1), np.mean(members, axis=0), rtol=1e-5)
    first, second = np.argmax(order[0, :, 3, 0]), np.argmin(order[0, :, 3, 0])
    assert pooled[0, first, 3, 0] == pooled[0, :, 3, 0].max()
    assert pooled[0, second, 3, 0] == pooled[0, :, 3, 0].min()


def test_scores_agree_with_scoringrules() -> None:
    library = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(50, 80)), rng.normal(size=50)
    ours = crps_of_paths(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(ours, library.crps_ensemble(y, x, estimator="nrg"), rtol=1e-10)
    for level in (0.05, 0.5, 0.95):
        loss = pinball(torch.from_numpy(x[:, :1]), torch.tensor([level]), torch.from_numpy(y))[:, 0].numpy()
        np.testing.assert_allclose(loss, library.quantile_score(y, x[:, 0], level), rtol=1e-6)
    joint, truth = rng.normal(size=(20, 60, 7)), rng.normal(size=(20, 7))
    ours = energy_score(torch.from_numpy(joint), torch.from_numpy(truth)).numpy()
    np.testing.assert_allclose(ours, library.es_ensemble(truth, joint, estimator="nrg"), rtol=1e-9)


def test_the_probability_integral_of_an_honest_law_is_uniform() -> None:
    rng = np.random.default_rng(4)
    x = torch.from_numpy(rng.normal(size=(20_000, 39)))
    values = probability_integral(x, torch.from_numpy(rng.normal(size=20_000))).numpy()
    shares = np.histogram(values, 10, (0, 1))[0] / len(values)
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
    assert probability_integral(torch.ones(3, 9), torch.ones(3)).tolist() == [0.5] * 3


def test_cells_are_the_sums_of_the_definitions() -> None:
    task = make_task(missing=True)
    case = RollingCase(task, task.items[0], 12, "local", CONTESTANTS)
    paths = case.forecast_of("ewma")
    cells = score_case(case, paths, 0)
    std, _, _ = item_scales(task.items[0].values, case.season)
    y = case.targets()
    levels = np.arange(1, 20) / 20
    loss, size, crps = 0.0, 0.0, []
    for o, h in np.argwhere(np.isfinite(y[..., 0])):
        f = np.quantile(paths[o, :, h, 0].astype(float), levels, method="weibull")
        error = y[o, h, 0] - f
        loss += 2 * np.maximum(levels * error, (levels - 1) * error).mean()
        size += abs(y[o, h, 0])
        sample = paths[o, :, h, 0].astype(float)
        spread = np.abs(sample[:, None] - sample).mean() / 2
        crps.append((np.abs(sample - y[o, h, 0]).mean() - spread) / std[0])
    np.testing.assert_allclose(by_indicator(cells, "wql")[0], loss / size, rtol=1e-5)
    np.testing.assert_allclose(by_indicator(cells, "crps")[0], np.mean(crps), rtol=1e-5)
    peak = np.nanmax(y[..., 1], axis=1)
    quantile = np.quantile(paths[..., 1].max(2).astype(float), 0.95, axis=1, method="weibull")
    hidden = np.isnan(y[..., 1]).any(1)  # there the peak is over fewer steps
    np.testing.assert_array_equal(cells.exceeded[1, ~hidden, 1], (peak > quantile)[~hidden])


def test_a_constant_indicator_is_not_scored() -> None:
    task = make_task()
    values = task.items[0].values.copy()
    values[:, 1] = 7.0
    case = RollingCase(task, replace(task.items[0], values=values), 12, "local", CONTESTANTS)
    cells = score_case(case, case.forecast_of("last"), 0)
    assert np.isnan(by_indicator(cells, "crps")[1])
    assert np.isfinite(task_metric(cells, "wql"))
    assert np.isfinite(cells.energy).all()


def test_the_reference_is_one_and_a_missing_pair_counts_as_one() -> None:
    task = make_task()
    cells = {}
    for name in ("snaive", "ewma"):
        parts = []
        for k, item in enumerate(task.items):
            case = RollingCase(task, item, 12, "local", CONTESTANTS)
            parts.append(score_case(case, case.forecast_of(name), k))
        cells[name] = join_cells(parts)
    pair, other = ("t", 12), ("t", 1)
    assert relative(cells["snaive"], cells["snaive"], "wql") == 1
    one = relative(cells["ewma"], cells["snaive"], "wql")
    both = headline({pair: cells["ewma"]}, {pair: cells["snaive"], other: cells["snaive"]})
    np.testing.assert_allclose(both.ratios["wql"], one**0.5)
    assert (both.num_pairs, both.num_forecast) == (2, 1)
    low, high = relative_interval(cells["ewma"], cells["snaive"], "wql", draws=60, seed=0)
    assert low < one < high
    low, high = pooled_interval({pair: cells["ewma"]}, {pair: cells["snaive"]}, "wql", draws=60, seed=0)
    assert low < one < high


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 2**31))
@settings(deadline=None)
def test_resampling_draws_origins_that_exist(items: list[int], seed: int) -> None:
    item = np.sort(np.array(items))
    rows = resampled_rows(item, np.random.default_rng(seed))
    assert rows.min() >= 0
    assert rows.max() < len(item)


def test_validation_hides_the_test_part() -> None:
    task = without_test_rows(make_task(missing=False))
    assert task.items[0].num_rows == 480
    assert task.items[0].test_start == 360
    assert RollingCase(task, task.items[0], 12, "local", CONTESTANTS).origins[-1] + 12 <= 479


def test_the_coarse_ring_holds_the_means_before_the_origin() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(300, 1))
    start = 600_000 * 2_000 + 3 * 60_000  # three minutes into a block
    batch = context_batch(
        values, [250], item_id="a", start_ts_ms=start, step_ms=60_000, indicators=[Indicator("x")], fine_rows=32,
        context_rows=200,
    )  # fmt: skip
    np.testing.assert_allclose(batch.values[0, :, 0], values[219:251, 0], rtol=1e-6)
    end = start + 251 * 60_000
    last = end // 600_000 * 600_000
    rows = [k for k in range(300) if last - 600_000 <= start + 60_000 * k < last]
    np.testing.assert_allclose(batch.coarse[0, -1, 0], values[rows, 0].mean(), rtol=1e-5)
    assert max(rows) <= 250
    assert int(batch.coarse_observed.sum()) in {19, 20}  # nothing beyond the 200 rows of context
