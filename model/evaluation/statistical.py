"""Classical forecasters from statsforecast (extra `rivals`): AutoETS, AutoARIMA, optimised Theta, MSTL.

Their own 80 % interval is read as a normal law per step, limited to one range of the context beyond the context; the
samples are ordered like the ridge's paths. Fitted on the last 300 rows at each origin: slow, so that the protocol runs
them on a subset (the middle prediction length, 5 items, 6 origins each, or 20 of a single item).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from model.evaluation.averages import reorder
from model.evaluation.baselines import empty
from model.evaluation.contestant_errors import NotRun
from model.evaluation.dataset import Floats, Task
from model.evaluation.rolling import Paths, Round, Rows, thinned

STATISTICAL_MODELS = ("AutoETS", "AutoARIMA", "DOTheta", "MSTL")
_FIT_ROWS = 300
_Z_80 = 1.2815515655446004


def statistical_contestant(name: str) -> Callable[[Round], Paths]:
    """The contestant of that name.

    Raises:
        NotRun: statsforecast is not installed.
    """
    try:
        import statsforecast.models as library
    except ImportError:
        raise NotRun("statsforecast is not installed: install the extra `rivals`") from None

    def model(season: int) -> Any:
        if name == "AutoETS":
            return library.AutoETS(season_length=1, model="ZAN")
        if name == "AutoARIMA":
            return library.AutoARIMA(max_p=3, max_q=2, max_d=1, season_length=1, approximation=True)
        if name == "DOTheta":
            return library.DynamicOptimizedTheta(season_length=1)
        trend = library.AutoETS(model="ZAN")
        return library.MSTL(season_length=season, trend_forecaster=trend) if season > 1 else trend

    def answer(asked: Round) -> Paths:
        out = empty(asked)
        levels = (np.arange(asked.num_paths) + 0.5) / asked.num_paths
        normal = _normal_quantiles(levels)
        seasonal = name == "MSTL" and asked.season > 1
        for k, origin in enumerate(asked.origins):
            rows = max(_FIT_ROWS, 2 * asked.season + 10) if seasonal else _FIT_ROWS
            x = asked.filled[max(asked.context_start(int(origin)), int(origin) + 1 - rows) : int(origin) + 1]
            for j in range(x.shape[1]):
                mean, sigma = _forecast(model(asked.season), x[:, j], asked.horizon)
                low, high = x[:, j].min(), x[:, j].max()
                sample = mean + sigma * normal[:, None]  # [S, H]
                out[k, :, :, j] = np.clip(sample, low - (high - low), high + (high - low))
        return reorder(np.sort(out, axis=1), asked.ask("ridge"))

    return answer


def subset_horizon(task: Task) -> int:
    """The middle prediction length, on which these models are run."""
    return task.prediction_lengths[len(task.prediction_lengths) // 2]


def subset_origins(origins: Rows, num_items: int) -> Rows:
    """The origins on which these models are run: 6 of an item, 20 of a single one, evenly spread."""
    return thinned(origins, 20 if num_items == 1 else 6)


def _forecast(model: Any, x: Floats, horizon: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation per step; a constant series, or one that the library fails on, stays as it is."""
    still = np.full(horizon, x[-1]), np.zeros(horizon)
    if x.std() <= 1e-9 * max(1.0, float(np.abs(x).mean())):
        return still
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = model.forecast(y=x.astype(np.float64), h=horizon, level=[80])
    except Exception:  # noqa: BLE001 - numerical failures of many kinds; the last value is what a user would fall back to
        return still
    sigma = (np.asarray(result["hi-80"]) - np.asarray(result["lo-80"])) / (2 * _Z_80)
    mean = np.asarray(result["mean"], dtype=np.float64)
    if not (np.isfinite(mean).all() and np.isfinite(sigma).all()):
        return still
    return mean, sigma.astype(np.float64)


def _normal_quantiles(levels: Floats) -> Floats:
    import torch

    values: Floats = (2**0.5 * torch.erfinv(2 * torch.from_numpy(levels) - 1)).numpy()
    return values
