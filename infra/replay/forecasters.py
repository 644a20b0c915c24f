"""Forecasters for ablations: the joint structure taken away, and perfect knowledge of the arrivals."""

from __future__ import annotations

import numpy as np
import torch

from infra.simulator.arrivals import Arrivals
from model.contract import ContextBatch, ForecastBatch, Forecaster, WrappedForecaster

_LEVEL_SIGMA, _STEP_SIGMA = 0.05, 0.1  # of the log: of whole paths, and of single steps beside


class Marginal(WrappedForecaster):
    """The same quantiles at every step, but every step drawn on its own: what independent marginals know."""

    def __init__(self, inner: Forecaster) -> None:
        super().__init__(inner, "marginal")

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """As the contract says."""
        answer = self._inner.forecast(batch, horizon, num_paths)
        generator = torch.Generator().manual_seed(int(batch.origin_ts_ms[0]) % (1 << 31))
        paths = answer.paths.clone()
        for step in range(horizon):
            paths[:, :, step] = paths[:, torch.randperm(num_paths, generator=generator), step]
        return ForecastBatch(paths, answer.sources, self.fingerprint)


class Perfect:
    """Knows the arrivals to come and states them within a few percent; of other indicators it knows the last value.

    A forecaster that claims to be certain and is wrong by a single request is not honest, and would be demoted.
    """

    def __init__(self, arrivals: Arrivals, start_ts_ms: int) -> None:
        self._arrival_s = arrivals.arrival_s
        self._start_ts_ms = start_ts_ms
        self.fingerprint = "perfect"
        self.max_horizon = 64
        self.min_context = 64

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """As the contract says."""
        step_s = batch.step_ms / 1000
        newest = batch.values[:, -1]  # [B, N]
        paths = newest[:, None, None].expand(len(batch), num_paths, horizon, newest.shape[-1]).clone()
        for row, origin_ts_ms in enumerate(batch.origin_ts_ms.tolist()):
            edges = (origin_ts_ms - self._start_ts_ms) / 1000 + step_s * np.arange(horizon + 1)
            counts = np.diff(np.searchsorted(self._arrival_s, edges, side="left"))
            generator = torch.Generator().manual_seed(origin_ts_ms % (1 << 31))
            levels = _LEVEL_SIGMA * torch.randn(num_paths, 1, generator=generator)
            steps = _STEP_SIGMA * torch.randn(num_paths, horizon, generator=generator)
            paths[row, :, :, 0] = torch.from_numpy(counts / step_s).to(paths.dtype) * torch.exp(levels + steps)
        return ForecastBatch(paths, ("perfect",) * len(batch), self.fingerprint)
