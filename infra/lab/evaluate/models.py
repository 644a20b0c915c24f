"""Which names `harmony evaluate --models` knows, and what stands behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from infra.console.errors import HarmonyError
from model.contract import Forecaster
from model.evaluation import contestants as averages
from model.evaluation import contestants as baselines
from model.evaluation import fisher as fisher_baselines
from model.evaluation.contestants import ridge
from model.evaluation.external import (
    FOUNDATION_MODELS,
    STATISTICAL_MODELS,
    foundation_contestant,
    statistical_contestant,
)
from model.evaluation.fisher import FisherCase, FisherForecast
from model.evaluation.rolling import NotRunnable, Paths, RollingCase
from model.evaluation.served import fisher_contestant, rolling_contestant

if TYPE_CHECKING:
    from model.evaluation.served import AdaptedNetworks

FINE_ROWS = 512  # newest rows that a forecaster of the contract sees one by one; the worker's own default is 128

RollingContestant = Callable[[RollingCase], Paths]
FisherContestant = Callable[[FisherCase], FisherForecast]


@dataclass(frozen=True, slots=True)
class Roster:
    """Contestants by name, and why a name that is known cannot run here."""

    rolling: dict[str, RollingContestant]
    fisher: dict[str, FisherContestant]
    not_run: dict[str, str]

    def choose(self, protocol: str, names: list[str]) -> tuple[list[str], dict[str, str]]:
        """The names that run, and the reason for each that does not.

        Raises:
            HarmonyError: a name that nothing knows, or one that the protocol does not.
        """
        contestants: dict[str, object] = {**(self.rolling if protocol == "rolling" else self.fisher)}
        unknown = [name for name in names if name not in contestants and name not in self.not_run]
        if unknown:
            listed = ", ".join([*contestants, *self.not_run])
            raise HarmonyError(f"--models: {protocol} knows no {', '.join(unknown)}; it knows {listed}.", 2)
        return [n for n in names if n in contestants], {n: self.not_run[n] for n in names if n not in contestants}


DEFAULT_MODELS = {
    "rolling": ["snaive", "last", "clim", "seasclim", "ewma", "ridge", "ens2", "ens", "served_ridge", "served_pool"],
    "fisher": ["last", "snaive", "ewma", "clim", "ridge", "ridge_scaled", "knn", "atoms", "choice", "pool"],
}


def _served_ridge() -> Forecaster:
    from model.baselines.ridge import RidgeForecaster

    return RidgeForecaster()


def _served_naive() -> Forecaster:
    from model.baselines.smoothing import SeasonalNaiveForecaster

    return SeasonalNaiveForecaster()


def _served_pool() -> Forecaster:
    from model.network.forecaster import baselines as behind_the_network

    return behind_the_network()


def _served() -> Forecaster:
    from model.network.forecaster import serving_forecaster

    return serving_forecaster()


def checkpoint_forecaster(name: str) -> Forecaster:
    """The network alone: `network` has the shipped weights, `network:FOLDER` those of a checkpoint.

    Raises:
        NotRunnable: the weights must not be used.
    """
    from model.network.checkpoint import CheckpointError
    from model.network.forecaster import network_forecaster
    from model.network.spec import SHIPPED_NAME

    try:
        return network_forecaster(name.partition(":")[2] or SHIPPED_NAME)
    except CheckpointError as error:
        raise NotRunnable(str(error)) from None


SERVED_MODELS: dict[str, Callable[[], Forecaster]] = {
    "served_naive": _served_naive,
    "served_ridge": _served_ridge,
    "served_pool": _served_pool,
    "served": _served,
}
ADAPTED, ADAPTED_ALONE = "adapted", "adapted_network"  # with the ridge, and alone; likewise with a folder
CHECKPOINT = "network"  # alone: the shipped weights; network:FOLDER: those in the folder


def roster(names: list[str]) -> Roster:
    """Contestants for the names asked for; heavy ones are loaded only when they are."""
    rolling: dict[str, RollingContestant] = {
        "snaive": baselines.seasonal_naive,
        "last": baselines.last_value,
        "drift": baselines.last_value,
        "clim": baselines.climatology,
        "clim_recent": baselines.recent_climatology,
        "seasclim": baselines.seasonal_climatology,
        "ewma": baselines.ewma,
        "ridge": ridge,
        "ens2": averages.quantile_average(["ridge", "ewma"]),
        "ens": averages.quantile_average(["ridge", "ewma"], "seasclim"),
    }
    fisher: dict[str, FisherContestant] = {
        "last": fisher_baselines.residual_ensemble(fisher_baselines.last_point),
        "snaive": fisher_baselines.point_only(fisher_baselines.daily_point),
        "ewma": fisher_baselines.residual_ensemble(fisher_baselines.ewma_point),
        "ewma_scaled": fisher_baselines.residual_ensemble(fisher_baselines.ewma_point, fisher_baselines.recent_unit),
        "clim": fisher_baselines.climatology,
        "ridge": fisher_baselines.residual_ensemble(fisher_baselines.ridge_point),
        "ridge_scaled": fisher_baselines.residual_ensemble(fisher_baselines.ridge_point, fisher_baselines.window_unit),
    }
    fisher |= _pools()
    not_run: dict[str, str] = {}
    adapted: dict[str, AdaptedNetworks] = {}  # by folder
    for name in names:
        if name in STATISTICAL_MODELS:
            _take(name, partial(_add_statistical, name, rolling), not_run)
        elif name in FOUNDATION_MODELS:
            _take(name, partial(_add_foundation, name, rolling), not_run)
        elif name.partition(":")[0] in {ADAPTED, ADAPTED_ALONE}:
            _take(name, partial(_add_adapted, name, adapted, rolling, fisher), not_run)
        elif name in SERVED_MODELS or name.partition(":")[0] == CHECKPOINT:
            _take(name, partial(_add_served, name, rolling, fisher), not_run)
    return Roster(rolling, fisher, not_run)


def _take(name: str, add: Callable[[], None], not_run: dict[str, str]) -> None:
    try:
        add()
    except NotRunnable as reason:
        not_run[name] = str(reason)


def _pools() -> dict[str, FisherContestant]:
    from model.evaluation.fisher import POOLS

    return dict(POOLS)


def _add_statistical(name: str, rolling: dict[str, RollingContestant]) -> None:
    rolling[name] = statistical_contestant(name)


def _add_foundation(name: str, rolling: dict[str, RollingContestant]) -> None:
    rolling[name] = foundation_contestant(name)


def _add_served(name: str, rolling: dict[str, RollingContestant], fisher: dict[str, FisherContestant]) -> None:
    forecaster = SERVED_MODELS[name]() if name in SERVED_MODELS else checkpoint_forecaster(name)
    rolling[name] = rolling_contestant(forecaster, FINE_ROWS)
    fisher[name] = fisher_contestant(forecaster)


def _add_adapted(
    name: str,
    adapted: dict[str, AdaptedNetworks],
    rolling: dict[str, RollingContestant],
    fisher: dict[str, FisherContestant],
) -> None:
    from model.evaluation.served import AdaptedNetworks
    from model.network.checkpoint import CheckpointError, load
    from model.network.forecaster import NetworkForecaster, combined
    from model.network.network import Network
    from model.network.spec import SHIPPED_NAME, weights_folder

    kind, _, folder = name.partition(":")
    try:
        if folder not in adapted:
            adapted[folder] = AdaptedNetworks(load(weights_folder(folder or SHIPPED_NAME)).network, FINE_ROWS)
    except CheckpointError as error:
        raise NotRunnable(str(error)) from None

    def serve(network: Network) -> Forecaster:
        alone = NetworkForecaster(network, "adapted")
        return combined(alone) if kind == ADAPTED else alone

    fisher[name] = adapted[folder].fisher_contestant(serve)
    rolling[name] = adapted[folder].rolling_contestant(serve)
