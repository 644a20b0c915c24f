"""Synthetic telemetry: finite, repeatable, of every kind that was promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.network.features import extract_features
from model.network.spec import NetworkSpec
from model.training.synthetic import (
    autoregression,
    bursts,
    cycle,
    delayed,
    draw_example,
    draw_groups,
    draw_loads,
    drift,
    regimes,
    season,
    switching,
)


@pytest.mark.parametrize("seed", range(12))
def test_examples_are_finite_and_repeatable(seed: int) -> None:
    example, again = draw_example(seed, 32), draw_example(seed, 32)
    assert torch.equal(example.batch.values, again.batch.values)
    assert torch.equal(example.target, again.target)
    assert example.target.isfinite().all()
    assert example.target.shape[1] == 64
    assert (example.batch.levels.diff() >= 0).all()
    features = extract_features(example.batch, NetworkSpec())
    assert features.tokens.isfinite().all()
    assert features.candidates.z.isfinite().all()


@pytest.mark.parametrize("seed", range(4))
def test_request_loads_are_demand_alone_and_leave_other_batches_as_they_are(seed: int) -> None:
    loads, again, plain = draw_example(seed, 32, 1.0), draw_example(seed, 32, 1.0), draw_example(seed, 32)
    assert torch.equal(loads.batch.values, again.batch.values)
    assert loads.target.isfinite().all()
    assert (loads.target >= 0).all()
    assert (loads.batch.levels == 1).all()
    assert loads.batch.coarse.shape[1] == 0
    assert loads.batch.values.shape[1] <= 128
    assert extract_features(loads.batch, NetworkSpec()).tokens.isfinite().all()
    mixed = [draw_example(seed, 32, share) for share in (1e-9, 0.0)]
    assert all(torch.equal(example.target, plain.target) for example in mixed)


def test_requests_are_counted_by_chance_about_a_rate_that_goes_on() -> None:
    counts = draw_loads(np.random.default_rng(6), 400, 256, 10.0)[..., 0] * 10.0
    assert np.abs(counts - np.round(counts)).max(axis=1).min() < 1e-6  # single requests, in half of them
    noise = np.diff(counts, axis=1).var(axis=1) / 2
    busy = counts.mean(axis=1) > 20
    assert np.median(noise[busy] / counts[busy].mean(axis=1)) > 0.9  # Poisson's variance is the mean, clumps have more
    first, last = counts[busy, :64].mean(axis=1), counts[busy, -64:].mean(axis=1)
    assert 0.05 < np.median(np.abs(np.log(last / first))) < 1.0


@pytest.mark.parametrize("part", [autoregression, bursts, cycle, drift, regimes, switching])
def test_parts_move_and_stay_finite(part: object) -> None:
    x = part(np.random.default_rng(1), 40, 300)  # type: ignore[operator]
    assert x.shape == (40, 300)
    assert np.isfinite(x).all()
    assert (x.std(axis=1) > 0).mean() > 0.7


def test_a_season_repeats_daily() -> None:
    x = season(np.random.default_rng(2), 200, 144 * 4, 144.0, 0.0)
    daily = [np.corrcoef(row[:144], row[144:288])[0, 1] for row in x]
    assert np.median(daily) > 0.9


def test_what_follows_lags_behind() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(100, 400))
    y = delayed(rng, x)
    assert y.shape == x.shape
    assert y.var() < x.var()


def test_indicators_of_a_group_move_together() -> None:
    # Enough groups that the last bits of a machine's sines, which steer the draws after them, decide nothing.
    x = draw_groups(np.random.default_rng(4), 400, 3, 300, None)
    assert x.shape == (400, 300, 3)
    ranks = x.argsort(1).argsort(1).astype(float)
    together = [abs(np.corrcoef(g[:, 0], g[:, 1])[0, 1]) for g in ranks]
    apart = [abs(np.corrcoef(ranks[k, :, 0], ranks[k - 1, :, 1])[0, 1]) for k in range(400)]
    assert np.nanquantile(together, 0.8) > np.nanquantile(apart, 0.8) + 0.1
