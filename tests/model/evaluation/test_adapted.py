"""The adapted contestant learns from the rows before the test part, and from no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from model.contract import Forecaster
from model.evaluation.fisher import FisherCase, FisherForecast, scale
from model.evaluation.rolling import Indicator, Paths, RollingCase, SeriesItem, Task, Track, split_rows
from model.evaluation.served import AdaptedNetworks, histories
from model.network.forecaster import NetworkForecaster
from model.network.network import Network
from model.training.adapt import OWN, TOGETHER, FleetOptions
from model.training.loop import TrainingOptions
from tests.model.network.untrained import small_network

FisherContestant = Callable[[FisherCase], FisherForecast]
FEW = TrainingOptions(steps=3, learning_rate=1e-3, validate_every=3)


def _task(rubbish: float | None = None) -> Task:
    time = np.arange(400.0)
    values = np.stack((10 + np.sin(time / 5), 5 + np.cos(time / 9)), axis=1)
    train, test, zero = split_rows(400, 200, 4)
    if rubbish is not None:
        values[test:] = rubbish
    item = SeriesItem("a", 0, values, train, test, zero)
    indicators = (Indicator("demand"), Indicator("power", level=3))
    return Task("t", 60.0, indicators, (4,), 200, (), 5, mixed_units=False, items=(item,))


def _weights(track: Track, task: Task) -> tuple[dict[str, torch.Tensor], Paths]:
    kept: list[Network] = []

    def serve(network: Network) -> Forecaster:
        kept.append(network)
        return NetworkForecaster(network, "0" * 12)

    contestant = AdaptedNetworks(small_network(), 96, FEW).rolling_contestant(serve)
    case = RollingCase(task, task.items[0], 4, track, {"adapted": contestant})
    paths = case.forecast_of("adapted")
    case.contestants["adapted"](case)
    assert len(kept) == 1  # adapted once, whatever is asked of it
    return kept[0].state_dict(), paths


def test_histories_end_before_the_test_part() -> None:
    task = _task(rubbish=1e9)
    (history,) = histories(task)
    assert len(history.values) == task.items[0].test_start
    assert np.nanmax(history.values) < 12


def test_test_rows_teach_nothing() -> None:
    clean, dirty = _weights("local", _task())[0], _weights("local", _task(rubbish=1e6))[0]
    assert all(torch.equal(clean[name], dirty[name]) for name in clean)


def test_what_is_too_short_or_may_not_be_fitted_is_forecast_as_it_is() -> None:
    plain = small_network().state_dict()
    kept, paths = _weights("zeroshot", _task())
    assert all(torch.equal(plain[name], kept[name]) for name in plain)
    assert np.isfinite(paths).all()
    task = _task()
    short = replace(task, items=(replace(task.items[0], train_end=40),))
    assert all(torch.equal(plain[name], value) for name, value in _weights("local", short)[0].items())


def test_contestants_that_serve_it_differently_share_what_was_learned() -> None:
    kept: list[Network] = []

    def serve(network: Network) -> Forecaster:
        kept.append(network)
        return NetworkForecaster(network, "0" * 12)

    adapted = AdaptedNetworks(small_network(), 96, FEW)
    task = _task()
    contestants = {name: adapted.rolling_contestant(serve) for name in ("one", "other")}
    case = RollingCase(task, task.items[0], 4, "local", contestants)
    assert np.array_equal(case.forecast_of("one"), case.forecast_of("other"))
    assert kept[0] is kept[1]


def test_a_task_too_short_to_learn_from_does_not_keep_the_next_one_from_learning() -> None:
    """A network that is served is frozen; the one that adaptation starts from must not be it."""
    kept: list[Network] = []

    def serve(network: Network) -> Forecaster:
        kept.append(network)
        return NetworkForecaster(network, "0" * 12)

    contestant = AdaptedNetworks(small_network(), 96, FEW).rolling_contestant(serve)
    task = _task()
    short = replace(task, name="short", items=(replace(task.items[0], train_end=40),))
    for about in (short, task):
        RollingCase(about, about.items[0], 4, "local", {"adapted": contestant}).forecast_of("adapted")
    before, after = (network.state_dict() for network in kept)
    assert not all(torch.equal(before[name], after[name]) for name in before)


def _container(
    rubbish: float, seed: int, contestants: dict[str, FisherContestant], fleet: list[FisherCase]
) -> FisherCase:
    time = np.arange(500.0)
    rows = np.stack((10 + np.sin(time / 5 + seed), np.round(time % 7)), axis=1)
    rows[400:] += rubbish  # 350 train rows, 50 that judge, 100 test rows
    scaled, low, spread = scale(rows)
    names = ("load", "cpu.busy")
    return FisherCase(f"c{seed}", scaled, low, spread, names, 0, 72, contestants, max_targets=5, fleet=fleet)


def test_containers_are_learned_from_their_train_rows_and_judged_by_their_validation_rows() -> None:
    few = FleetOptions(
        replace(TOGETHER, steps=20, validate_every=10), replace(OWN, steps=20, validate_every=10), windows=(16, 16)
    )
    learned = []
    for rubbish in (0.0, 1e6):
        kept: list[Network] = []

        def serve(network: Network, kept: list[Network] = kept) -> Forecaster:
            kept.append(network)
            return NetworkForecaster(network, "0" * 12)

        contestants = {"adapted": AdaptedNetworks(small_network(), 96, one_step=few).fisher_contestant(serve)}
        fleet: list[FisherCase] = []
        fleet += [_container(rubbish, seed, contestants, fleet) for seed in (0, 1)]
        for case in fleet:
            assert case.forecast_of("adapted").samples.shape == (5, 100, 2)
        learned.append([network.state_dict() for network in kept])
    for clean, dirty in zip(*learned, strict=True):
        assert all(torch.equal(clean[name], dirty[name]) for name in clean)
    fresh, (one, other) = small_network().state_dict(), learned[0]
    trunk = "enter.weight"  # learned of both containers together
    assert torch.equal(one[trunk], other[trunk])
    assert not torch.equal(fresh[trunk], one[trunk])
    assert not all(torch.equal(one[name], other[name]) for name in one)
