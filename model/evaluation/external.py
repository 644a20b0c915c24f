"""Public foundation models as contestants: Chronos, TiRex, TimesFM, and Fracast with its weights (extra `rivals`).

They forecast quantiles of one series at a time. Samples are read off the quantiles, with exponential tails beyond the
outer ones, and ordered like the ridge's paths. Without package or weights a contestant is reported as not run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.evaluation.contestants import empty_paths, reorder
from model.evaluation.rolling import Floats, NotRunnable, Paths, RollingCase, Rows, Task, thinned

FOUNDATION_MODELS = {
    "chronos": "amazon/chronos-bolt-small",
    "tirex": "NX-AI/TiRex",
    "timesfm": "google/timesfm-2.5-200m-pytorch",
    "fracast": "of fracast 0.1.0",
}
_LEVELS = np.arange(1, 10) / 10
_MAX_CONTEXT = 2048

Quantiles = Callable[[Floats, int], Floats]


def foundation_contestant(name: str) -> Callable[[RollingCase], Paths]:
    """The contestant of that name, its weights loaded.

    Raises:
        NotRunnable: the package is not installed or the weights cannot be had.
    """
    quantiles = _LOADERS[name](FOUNDATION_MODELS[name])

    def forecast(case: RollingCase) -> Paths:
        out = empty_paths(case)
        for k, origin in enumerate(case.origins):
            first = max(case.context_start(int(origin)), int(origin) + 1 - _MAX_CONTEXT)
            x = case.filled[first : int(origin) + 1].T  # [N, L]
            out[k] = samples_of_quantiles(quantiles(x, case.horizon), case.num_paths)
        return reorder(np.sort(out, axis=1), case.forecast_of("ridge"))

    return forecast


def samples_of_quantiles(quantiles: Floats, num: int) -> NDArray[np.float32]:
    """Middles of `num` equal slices of the law through the deciles, exponential beyond the outer ones.

    Args:
        quantiles: [N, H, 9].

    Returns:
        float32 [num, H, N], ascending.
    """
    q = np.sort(quantiles, axis=-1)
    at = (np.arange(num) + 0.5) / num
    inner = np.clip(at, _LEVELS[0], _LEVELS[-1])
    low = np.clip(np.searchsorted(_LEVELS, inner, side="right") - 1, 0, len(_LEVELS) - 2)
    share = (inner - _LEVELS[low]) / (_LEVELS[low + 1] - _LEVELS[low])
    body = q[..., low] + share * (q[..., low + 1] - q[..., low])  # [N, H, num]
    # The tail's rate continues the outermost pair of deciles: a law that is exponential from .8 (.2) on.
    upper = (q[..., -1:] - q[..., -2:-1]) / np.log(2)
    lower = (q[..., 1:2] - q[..., :1]) / np.log(2)
    above = np.where(at > _LEVELS[-1], np.log((1 - _LEVELS[-1]) / np.maximum(1 - at, 1e-12)), 0.0)
    below = np.where(at < _LEVELS[0], np.log(_LEVELS[0] / np.maximum(at, 1e-12)), 0.0)
    sample = body + upper * above - lower * below
    return np.asarray(sample.transpose(2, 1, 0), dtype=np.float32)


def _chronos(weights: str) -> Quantiles:
    try:
        import torch
        from chronos import BaseChronosPipeline
    except ImportError:
        raise NotRunnable("chronos-forecasting is not installed: install the extra `foundation`") from None
    pipeline = _loaded(lambda: BaseChronosPipeline.from_pretrained(weights, device_map="cpu"), weights)

    def quantiles(x: Floats, horizon: int) -> Floats:
        forecast, _ = pipeline.predict_quantiles(
            torch.from_numpy(x).float(), prediction_length=horizon, quantile_levels=_LEVELS.tolist()
        )
        return np.asarray(forecast, dtype=np.float64)

    return quantiles


def _tirex(weights: str) -> Quantiles:
    try:
        import torch
        from tirex import load_model
    except ImportError:
        raise NotRunnable("tirex-ts is not installed: install the extra `foundation`") from None
    model = _loaded(lambda: load_model(weights, device="cpu"), weights)

    def quantiles(x: Floats, horizon: int) -> Floats:
        forecast, _ = model.forecast(context=torch.from_numpy(x).float(), prediction_length=horizon)
        return np.asarray(forecast, dtype=np.float64)

    return quantiles


def _timesfm(weights: str) -> Quantiles:
    try:
        import timesfm
    except ImportError:
        raise NotRunnable("timesfm is not installed: install the extra `foundation`") from None
    model = _loaded(lambda: timesfm.TimesFM_2p5_200M_torch.from_pretrained(weights), weights)
    model.compile(timesfm.ForecastConfig(max_context=_MAX_CONTEXT, max_horizon=128, use_continuous_quantile_head=True))

    def quantiles(x: Floats, horizon: int) -> Floats:
        _, forecast = model.forecast(horizon=horizon, inputs=list(x.astype(np.float32)))
        return np.asarray(forecast, dtype=np.float64)[..., 1:]  # the first is the mean

    return quantiles


def _fracast(weights: str) -> Quantiles:
    """85,000 parameters; beyond its 48 steps it reads its own medians, as its package has it."""
    try:
        from fracast import FracastModel
    except ImportError:
        raise NotRunnable("fracast is not installed: install the extra `rivals`") from None
    model = _loaded(FracastModel.from_pretrained, weights)

    def quantiles(x: Floats, horizon: int) -> Floats:
        return np.asarray(model.forecast(x, horizon=horizon), dtype=np.float64)

    return quantiles


_LOADERS: dict[str, Callable[[str], Quantiles]] = {
    "chronos": _chronos,
    "tirex": _tirex,
    "timesfm": _timesfm,
    "fracast": _fracast,
}


def _loaded(load: Callable[[], Any], weights: str) -> Any:
    try:
        return load()
    except Exception as error:  # noqa: BLE001 - no network, no file, no licence accepted: each hub has errors of its own
        raise NotRunnable(f"the weights {weights} cannot be had here ({type(error).__name__})") from None


# Classical forecasters from statsforecast (extra `rivals`): AutoETS, AutoARIMA, optimised Theta, MSTL.
#
# Their own 80 % interval is read as a normal law per step, limited to one range of the context beyond the context; the
# samples are ordered like the ridge's paths. Fitted on the last 300 rows at each origin: slow, so that the protocol
# runs them on a subset (the middle prediction length, 5 items, 6 origins each, or 20 of a single item).


STATISTICAL_MODELS = ("AutoETS", "AutoARIMA", "DOTheta", "MSTL")
_FIT_ROWS = 300
_Z_80 = 1.2815515655446004


def statistical_contestant(name: str) -> Callable[[RollingCase], Paths]:
    """The contestant of that name.

    Raises:
        NotRunnable: statsforecast is not installed.
    """
    try:
        import statsforecast.models as library
    except ImportError:
        raise NotRunnable("statsforecast is not installed: install the extra `rivals`") from None

    def model(season: int) -> Any:
        if name == "AutoETS":
            return library.AutoETS(season_length=1, model="ZAN")
        if name == "AutoARIMA":
            return library.AutoARIMA(max_p=3, max_q=2, max_d=1, season_length=1, approximation=True)
        if name == "DOTheta":
            return library.DynamicOptimizedTheta(season_length=1)
        trend = library.AutoETS(model="ZAN")
        return library.MSTL(season_length=season, trend_forecaster=trend) if season > 1 else trend

    def forecast(case: RollingCase) -> Paths:
        out = empty_paths(case)
        levels = (np.arange(case.num_paths) + 0.5) / case.num_paths
        normal = _normal_quantiles(levels)
        seasonal = name == "MSTL" and case.season > 1
        for k, origin in enumerate(case.origins):
            rows = max(_FIT_ROWS, 2 * case.season + 10) if seasonal else _FIT_ROWS
            x = case.filled[max(case.context_start(int(origin)), int(origin) + 1 - rows) : int(origin) + 1]
            for j in range(x.shape[1]):
                mean, sigma = _forecast(model(case.season), x[:, j], case.horizon)
                low, high = x[:, j].min(), x[:, j].max()
                sample = mean + sigma * normal[:, None]  # [S, H]
                out[k, :, :, j] = np.clip(sample, low - (high - low), high + (high - low))
        return reorder(np.sort(out, axis=1), case.forecast_of("ridge"))

    return forecast


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
