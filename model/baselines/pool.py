"""One forecaster behind another: every row gets an answer, and says whose it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.baselines.context import check_request
from model.contract import ContextBatch, ForecastBatch, Forecaster
from model.rows import take_rows


@dataclass(frozen=True, slots=True)
class Where:
    """Rows that a forecaster is asked for.

    Attributes:
        ring_rows: ten-minute means that its ring holds at least, of one indicator.
        reach_s: seconds ahead, at most.
    """

    ring_rows: int
    reach_s: float

    def rows(self, batch: ContextBatch, horizon: int) -> Tensor:
        """bool [B]."""
        if horizon * batch.step_ms > 1000 * self.reach_s or batch.coarse_observed.shape[2] == 0:
            return torch.zeros(len(batch), dtype=torch.bool, device=batch.values.device)
        return batch.coarse_observed.sum(1).amax(-1) >= self.ring_rows


class FallbackForecaster:
    """The primary's answer where it has enough context and is finite, the secondary's elsewhere.

    A primary that raises is answered by the secondary for all its rows; chains are built by nesting. What the secondary
    raises reaches the caller.

    Args:
        primary: asked for the rows with at least its `min_context` observed steps, up to its `max_horizon`.
        secondary: asked for the rest.
        on_error: told what the primary raised.
        where: the primary is asked for no other rows; None: for all with enough context.
    """

    def __init__(
        self,
        primary: Forecaster,
        secondary: Forecaster,
        on_error: Callable[[Exception], None] | None = None,
        where: Where | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._on_error = on_error
        self._where = where
        body = f"{primary.fingerprint}|{secondary.fingerprint}" + (f"|{where}" if where is not None else "")
        self._fingerprint = "fallback-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return max(self._primary.max_horizon, self._secondary.max_horizon)

    @property
    def min_context(self) -> int:
        return min(self._primary.min_context, self._secondary.min_context)

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says; `sources` names per row who answered.

        Raises:
            ValueError: horizon above both, inconsistent shapes, or rows that the secondary cannot answer either.
        """
        check_request(batch, horizon, num_paths, self.max_horizon)
        asks = _enough_context(batch, self._primary.min_context)
        if self._where is not None:
            asks &= self._where.rows(batch, horizon)
        asked = asks.nonzero()[:, 0].tolist()
        first = self._ask_primary(batch, asked, horizon, num_paths) if asked else None
        if first is None:
            answer = self._secondary.forecast(batch, horizon, num_paths)
            return ForecastBatch(answer.paths, answer.sources, self._fingerprint)
        finite = _finite_rows(first.paths)
        answered = [row for row, good in zip(asked, finite, strict=True) if good]
        left = sorted(set(range(len(batch))) - set(answered))
        if not left:
            return ForecastBatch(first.paths, first.sources, self._fingerprint)
        second = self._secondary.forecast(take_rows(batch, left), horizon, num_paths)
        paths = first.paths.new_empty((len(batch), *second.paths.shape[1:]))
        paths[left] = second.paths
        sources = dict(zip(left, second.sources, strict=True))
        if answered:
            kept = [k for k, good in enumerate(finite) if good]
            paths[answered] = first.paths[kept]
            sources |= {asked[k]: first.sources[k] for k in kept}
        return ForecastBatch(paths, tuple(sources[row] for row in range(len(batch))), self._fingerprint)

    def _ask_primary(self, batch: ContextBatch, asked: list[int], horizon: int, num_paths: int) -> ForecastBatch | None:
        """The primary's answer for these rows; None where it raises: a forecast is never worth an outage."""
        if horizon > self._primary.max_horizon:
            return None
        rows = batch if len(asked) == len(batch) else take_rows(batch, asked)
        try:
            return self._primary.forecast(rows, horizon, num_paths)
        except Exception as error:  # noqa: BLE001 - whatever it is, the secondary answers, and the sources show it
            if self._on_error is not None:
                self._on_error(error)
            return None


def _finite_rows(paths: Tensor) -> list[bool]:
    """Which rows hold finite numbers only. A finite sum says so at once; only the others are looked at in full."""
    rows = paths.flatten(1)
    finite: list[bool] = rows.sum(1).isfinite().tolist()
    return [good or bool(rows[k].isfinite().all()) for k, good in enumerate(finite)]


def _enough_context(batch: ContextBatch, min_context: int) -> Tensor:
    """bool [B]: rows with enough observed steps of some level-1 indicator (of any indicator where none has level 1)."""
    known = batch.observed & batch.values.isfinite()
    demand = batch.levels == 1
    columns = known[:, :, demand] if bool(demand.any()) else known
    if columns.shape[-1] == 0:
        return torch.zeros(len(batch), dtype=torch.bool, device=batch.values.device)
    return columns.sum(1).amax(-1) >= min_context
