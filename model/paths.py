"""Joint sample paths from windows: one window index per path, shared by all steps and indicators."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context import check_request
from model.contract import ContextBatch, ForecastBatch
from model.draws import row_keys
from model.row_paths import Rows


@runtime_checkable
class PathWriter(Protocol):
    """A forecaster that can write its paths among those of others."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_horizon(self) -> int: ...

    def write_paths(self, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor) -> None:
        """Make as many paths as there are places, path s at out[:, places[s]].

        Args:
            places: int64 [S].
            out: float32 [B, paths, H, N], contiguous, on the device of the batch.

        Raises:
            ValueError: as `forecast` does.
        """
        ...


def forecast_by(writer: PathWriter, batch: ContextBatch, horizon: int, num_paths: int, source: str) -> ForecastBatch:
    """The forecast of one writer alone.

    Raises:
        ValueError: as its `write_paths`.
    """
    check_request(batch, horizon, num_paths, writer.max_horizon)
    b, _, n = batch.values.shape
    out = empty_paths(b, num_paths, horizon, n, batch.values.device)
    writer.write_paths(batch, horizon, np.arange(num_paths), out)
    return ForecastBatch(out, (source,) * b, writer.fingerprint)


def put_paths(paths: Tensor, places: NDArray[np.int64], out: Tensor) -> None:
    """Copy path s of every row [B, S, H, N] to out[:, places[s]]."""
    out[:, torch.from_numpy(places).to(out.device)] = paths


def empty_paths(num_rows: int, num_paths: int, horizon: int, num_indicators: int, device: torch.device) -> Tensor:
    """Uninitialised float32 [B, S, H, N].

    On a CPU the memory comes from numpy, which asks for huge pages: a quarter of the time of first touch.
    """
    shape = (num_rows, num_paths, horizon, num_indicators)
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, dtype=np.float32))
    return torch.empty(shape, dtype=torch.float32, device=device)


def take_paths(windows: Tensor, draws: Tensor) -> Tensor:
    """Paths float32 [B, S, H, N]: path s = window draws[s] of its row.

    Args:
        windows: float32 [B, W, H, N], possible futures.
        draws: int64 [B, S].
    """
    b, w, h, n = windows.shape
    flat = (draws + torch.arange(b, device=draws.device)[:, None] * w).reshape(-1)
    return windows.reshape(b * w, h * n).index_select(0, flat).view(b, draws.shape[1], h, n)


def compiled_rows(batch: ContextBatch, seed: int) -> Rows:
    """The rows of a batch on the CPU, as the compiled loops take them."""
    return Rows(
        row_keys(batch.item_ids, batch.origin_ts_ms, seed),
        as_array(batch.values, torch.float32),
        as_array(batch.observed, torch.bool),
        as_array(batch.lower, torch.float32),
        as_array(batch.upper, torch.float32),
    )


def flat_paths(out: Tensor) -> NDArray[np.float32]:
    """The memory of paths as [B, S, H * N]."""
    b, num_paths, horizon, n = out.shape
    array: NDArray[np.float32] = out.view(b, num_paths, horizon * n).numpy()
    return array


def as_array(tensor: Tensor, dtype: torch.dtype) -> Any:
    """Contiguous, of the given type: compiled code exists for no other."""
    return tensor.detach().to(dtype).contiguous().numpy()
