"""The Fisher protocol: splits, scaling, windows, the rivals' points and laws, and the known figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infra.lab.evaluate.fisher import read_containers
from model.evaluation import fisher as rivals
from model.evaluation.fisher import POOLS, FisherCase, pool_weights, published_rows, scale, score, split_counts


def case(num_rows: int = 500, length: int = 24) -> FisherCase:
    rng = np.random.default_rng(1)
    hops = rng.choice([0.1, 0.5, 0.9], num_rows)
    walk = rng.normal(size=num_rows).cumsum()
    raw = np.stack((hops, walk, np.full(num_rows, 3.0)), axis=1)
    scaled, low, spread = scale(raw)
    contestants = {"ridge": rivals.residual_ensemble(rivals.ridge_point, rivals.window_unit), **POOLS}
    return FisherCase("c", scaled, low, spread, ("hops", "walk", "still"), 0, length, contestants)


@pytest.mark.parametrize(
    ("rows", "parts"), [(4464, (3124, 448, 892)), (3941, (2758, 395, 788)), (3942, (2759, 395, 788))]
)
def test_split_of_the_recorded_containers(rows: int, parts: tuple[int, int, int]) -> None:
    assert split_counts(rows) == parts
    assert published_rows(parts[2]) in {864, 768}


def test_scaling_is_fitted_on_the_train_rows() -> None:
    raw = np.arange(100.0)[:, None] * np.array([1.0, 0.0]) + 5
    scaled, low, spread = scale(raw)
    np.testing.assert_allclose(scaled[[0, 69], 0], [0, 1])
    assert scaled[-1, 0] > 1
    assert (scaled[:, 1] == 0).all()
    np.testing.assert_allclose(low + scaled * spread, raw)


def test_points_do_not_see_their_targets() -> None:
    about = case()
    targets = about.test[:20]
    for point in (rivals.last_point, rivals.ewma_point, rivals.ridge_point):
        before = point(about, targets)
        changed = case()
        changed.scaled[targets[-1] :] += 100.0
        np.testing.assert_allclose(point(changed, targets), before)


@pytest.mark.parametrize("name", ["ridge", *POOLS])
def test_answers_are_laws(name: str) -> None:
    about = case()
    answer = about.forecast_of(name)
    assert answer.samples.shape == (len(about.test), 100, 3)
    assert np.isfinite(answer.samples).all()
    scores = score(about, answer)
    assert scores.moving.tolist() == [True, True, False]
    assert scores.crps[:, 2].max() < 0.02


def test_atoms_win_where_a_series_hops_between_values() -> None:
    about = case()
    hops = {
        name: score(about, about.forecast_of(name)).crps[:, 0].mean() for name in ("ridge", "atoms", "choice", "pool")
    }
    assert hops["atoms"] < 0.95 * hops["ridge"]
    assert hops["choice"] <= hops["ridge"]
    assert hops["pool"] < 0.96 * hops["ridge"]


def test_pool_weights_find_the_law_that_is_true() -> None:
    rng = np.random.default_rng(2)
    levels = (np.arange(100) + 0.5) / 100
    good = np.quantile(rng.normal(size=20_000), levels)
    samples = np.stack([np.broadcast_to((good + shift)[None, :, None], (300, 100, 1)) for shift in (0.0, 2.0, -3.0)])
    weights = pool_weights(samples, rng.normal(size=(300, 1)))
    np.testing.assert_allclose(weights.sum(), 1)
    assert weights[0, 0] > 0.9


@pytest.mark.slow
def test_the_ridge_reaches_the_known_figures(data_dir: Path) -> None:
    folder = data_dir / "fisher"
    if not folder.is_dir():
        pytest.skip("HARMONY_DATA_DIR has no fisher")
    figures = []
    for name, table in read_containers(folder, ["container2", "container8"]):
        scaled, low, spread = scale(table.values)
        about = FisherCase(name, scaled, low, spread, table.indicators, table.start_ts_ms, 72, {})
        answer = rivals.residual_ensemble(rivals.ridge_point, rivals.window_unit)(about)
        scores = score(about, answer)
        kept = published_rows(about.num_test)
        figures.append((scores.squared[:kept].mean(), scores.crps[:kept].mean()))
    # Measured by another implementation of the protocol.
    np.testing.assert_allclose(figures, [(0.0406, 0.0527), (0.0154, 0.0244)], atol=4e-4)
