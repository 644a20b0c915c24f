"""Direct multi-step ridge, fitted in context at each origin: the workhorse baseline.

Per row and indicator one regression serves all horizons: the change from the newest value over h steps, on the changes
that led to it (one Gram matrix, one factorisation). A large penalty thus means the last value, not the context's mean,
to which in-context fits revert too eagerly. Leave-one-out residuals, their mean drift doubted, are drawn by whole
windows and make the paths coherent over steps and indicators. Stateless: a forecast is a function of the row alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import (
    check_request,
    compiled_rows,
    flat_paths,
    forecast_by,
    write_from_host,
)
from model.baselines.ridge_kernel import (
    Settings,
    WindowTables,
    ridge_paths,
)
from model.contract import ContextBatch, ForecastBatch

# How wide the ridge's residual windows must be spread: what the context cannot show of its own tails.
#
# Overlapping windows are far fewer than they look: over H steps a context of L holds about L / H independent ones, and
# the largest of five is exceeded every sixth time. The residuals' scale is therefore itself uncertain, and each window
# is widened by its share of the law of that uncertainty (Student's law, as for any scale estimated from few values).


GOLDEN = 0.6180339887498949


def reversal_factors(num_windows: int, device: torch.device) -> Tensor:
    """Parts of its drift that each window is taken back by, float32 [W]: from nothing to twice, evenly spread."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float32, device=device)
    return 2.0 * ((steps * GOLDEN) % 1.0)


@lru_cache(maxsize=64)
def window_tables(num_windows: int) -> WindowTables:
    """Both tables of that many windows, for the compiled loops."""
    here = torch.device("cpu")
    return WindowTables(reversal_factors(num_windows, here).numpy(), normal_scores(num_windows, here).numpy())


def normal_scores(num_windows: int, device: torch.device) -> Tensor:
    """Normal quantiles, float64 [W], evenly spread, neighbours far apart."""
    steps = torch.arange(1, num_windows + 1, dtype=torch.float64, device=device)
    share = (steps * GOLDEN) % 1.0
    return 2**0.5 * torch.erfinv((2 * share - 1).clamp(-0.999, 0.999))


_VERSION = 4
_CHUNK_ROWS = 8  # every solve sees this many rows, padded: a row's bits cannot depend on the size of its batch


@dataclass(frozen=True, slots=True)
class RidgeOptions:
    """Settings of the ridge.

    Attributes:
        max_order: most changes to regress on; fewer where the context is short.
        penalties: candidates, as shares of the number of windows fitted on, in units of the column's variance.
        min_windows: fewest valid windows for a fit; below, the indicator gets last value + differences.
        most_repeated: largest share of a window that is taken for repeated by the windows which overlap it; 0 leaves
            residuals as they are, for a mixture whose other members widen it.
    """

    max_order: int = 8
    penalties: tuple[float, ...] = (0.01, 0.3, 10.0)
    min_windows: int = 24
    most_repeated: float = 0.2


class RidgeForecaster:
    """Batched in-context ridge (see the module). A row's draws are fixed by (item id, origin, seed)."""

    def __init__(self, seed: int = 0, options: RidgeOptions | None = None) -> None:
        self._seed = seed
        self._options = options or RidgeOptions()
        body = f"ridge/{_VERSION}/{seed}/{sorted(asdict(self._options).items())}"
        self._fingerprint = "ridge-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return 64

    @property
    def min_context(self) -> int:
        return 64

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Forecast as the contract says.

        Raises:
            ValueError: horizon above `max_horizon`, inconsistent shapes, or a context too short for the horizon.
        """
        return forecast_by(self, batch, horizon, num_paths, "ridge")

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Write paths as `PathWriter` says; by compiled loops on the host.

        Raises:
            ValueError: as `forecast`.
        """
        check_request(batch, horizon, len(places), self.max_horizon)
        length = batch.values.shape[1]
        order = lag_order(length, horizon, self._options)
        if out.device.type != "cpu":
            write_from_host(self, batch, horizon, places, out)
            return
        settings = Settings(
            order,
            horizon,
            np.array(self._options.penalties, np.float64),
            np.array(probe_steps(horizon)),
            self._options.min_windows,
            self._options.most_repeated,
        )
        tables = window_tables(length - horizon - order)
        ridge_paths(compiled_rows(batch, self._seed), settings, tables, places, flat_paths(out))


def lag_order(context_length: int, horizon: int, options: RidgeOptions) -> int:
    """Number of changes to regress on: a quarter of the steps that may serve as origins, within 4..max_order.

    Raises:
        ValueError: the context is too short for the horizon.
    """
    order = min(options.max_order, max(4, (context_length - horizon) // 4))
    if context_length - horizon - order < options.min_windows:
        needed = horizon + 4 + options.min_windows
        raise ValueError(f"horizon {horizon} needs a context of {needed} steps, this one has {context_length}")
    return order


def probe_steps(horizon: int) -> list[int]:
    """A few steps that stand for all in the choice of the penalty: first, last and two between."""
    return sorted({0, horizon // 4, horizon // 2, horizon - 1})
