"""The contract, on every baseline and on a chain of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model.baselines.pool import FallbackForecaster, PoolForecaster, SurgeForecaster
from model.baselines.ridge import RidgeForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster, SmoothingForecaster
from model.contract import Forecaster
from tests.model.forecaster_contract import LAWS

FORECASTERS: dict[str, Callable[[], Forecaster]] = {
    "ridge": RidgeForecaster,
    "seasonal_naive": SeasonalNaiveForecaster,
    "smoothing": SmoothingForecaster,
    "pool": lambda: PoolForecaster([(RidgeForecaster(), 2), (SmoothingForecaster(), 1)]),
    "surge": lambda: SurgeForecaster(
        PoolForecaster([(RidgeForecaster(), 2), (SmoothingForecaster(), 1)]), SeasonalNaiveForecaster(1)
    ),
    "fallback": lambda: FallbackForecaster(RidgeForecaster(), SeasonalNaiveForecaster()),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", FORECASTERS)
def test_contract(name: str, law: Callable[[Forecaster], None]) -> None:
    law(FORECASTERS[name]())


@pytest.mark.parametrize("make", [RidgeForecaster, SeasonalNaiveForecaster, SmoothingForecaster])
def test_the_fingerprint_names_model_and_seed(make: Callable[[int], Forecaster]) -> None:
    assert make(0).fingerprint == make(0).fingerprint
    assert make(0).fingerprint != make(1).fingerprint
