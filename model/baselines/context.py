"""The context of a batch as forecasters read it, a row's random draws, and joint paths made of windows.

A row's draws are fixed by its workload, origin and seed, never by the batch around it: the rows of a batch change from
slot to slot, and a restart must repeat its forecasts bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.baselines.context_kernel import CONSTANT_RATIO, GOLDEN, MIX_A, MIX_B, BatchRows
from model.contract import ContextBatch, ForecastBatch, each_tensor


@dataclass(frozen=True, slots=True)
class FilledContext:
    """Columns first, in float64.

    Attributes:
        filled: [B, N, L], gaps filled with the last observed value, leading gaps with the first.
        observed: bool [B, N, L], finite and observed.
        count: int64 [B, N], observed cells.
        mean, spread: [B, N] over the observed cells; `spread` is the standard deviation, 0 for a constant column.
    """

    filled: Tensor
    observed: Tensor
    count: Tensor
    mean: Tensor
    spread: Tensor

    @property
    def moving(self) -> Tensor:
        """bool [B, N]: columns that are neither unobserved nor constant."""
        return self.spread > 0


def observed_range(values: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest observed value over the steps of [B, L, ...]; inf and -inf where nothing was observed."""
    unknown = ~(observed & values.isfinite())
    return values.masked_fill(unknown, torch.inf).amin(1), values.masked_fill(unknown, -torch.inf).amax(1)


def check_request(batch: ContextBatch, horizon: int, num_paths: int, max_horizon: int) -> None:
    """Check that a request is valid for every forecaster.

    Raises:
        ValueError: horizon or paths out of range, or tensors of inconsistent shape.
    """
    if not 1 <= horizon <= max_horizon:
        raise ValueError(f"horizon {horizon} is not within 1..{max_horizon}")
    if num_paths < 1:
        raise ValueError(f"num_paths {num_paths} must be at least 1")
    if batch.values.dim() != 3:
        raise ValueError(f"values must be [B, L, N], got {tuple(batch.values.shape)}")
    b, _, n = batch.values.shape
    expected = {
        "observed": (batch.observed, tuple(batch.values.shape)),
        "coarse_observed": (batch.coarse_observed, tuple(batch.coarse.shape)),
        "origin_ts_ms": (batch.origin_ts_ms, (b,)),
        "levels": (batch.levels, (n,)),
        "lower": (batch.lower, (n,)),
        "upper": (batch.upper, (n,)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")
    if len(batch.item_ids) != b or len(batch.indicators) != n or batch.coarse.dim() != 3 or batch.coarse.shape[0] != b:
        raise ValueError(f"item_ids, indicators and coarse must match values {tuple(batch.values.shape)}")
    if batch.coarse.shape[2] > n:
        raise ValueError(f"coarse holds {batch.coarse.shape[2]} indicators, values {n}")


def fill(values: Tensor, observed: Tensor) -> FilledContext:
    """Fill gaps and measure each column; what stands in a masked cell has no influence.

    Args:
        values: [B, L, N].
        observed: bool [B, L, N].
    """
    present = (observed & values.isfinite()).transpose(1, 2).contiguous()  # [B, N, L]
    x = values.transpose(1, 2).to(torch.float64).where(present, 0.0)
    steps = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    newest = torch.where(present, steps, -1).cummax(-1).values
    first = present.long().argmax(-1, keepdim=True)
    filled = x.gather(-1, torch.where(newest < 0, first, newest))
    count = present.sum(-1)
    cells = count.clamp(min=1)
    mean = x.sum(-1) / cells
    deviation = torch.where(present, x - mean[..., None], 0.0)
    spread = ((deviation * deviation).sum(-1) / cells).sqrt()
    spread = torch.where(spread > CONSTANT_RATIO * mean.abs(), spread, 0.0)
    return FilledContext(filled, present, count, mean, spread)


# Random draws of a row.


def row_seed(item_id: str, origin_ts_ms: int, seed: int) -> int:
    """64 bits that fix the draws of one row."""
    text = "\x1f".join((item_id, str(origin_ts_ms), str(seed)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_keys(item_ids: Sequence[str], origin_ts_ms: Tensor, seed: int) -> NDArray[np.uint64]:
    """Seeds of rows, [B]."""
    origins = origin_ts_ms.tolist()
    return np.array([row_seed(i, o, seed) for i, o in zip(item_ids, origins, strict=True)], dtype=np.uint64)


def row_uniforms(item_ids: Sequence[str], origin_ts_ms: Tensor, seed: int, count: int) -> NDArray[np.float64]:
    """Uniforms in [0, 1), [B, count]: SplitMix64 streams, so that element k of a row depends on the row alone.

    Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    keys = row_keys(item_ids, origin_ts_ms, seed)
    with np.errstate(over="ignore"):
        state = keys[:, None] + GOLDEN * np.arange(1, count + 1, dtype=np.uint64)[None, :]  # [B, count]
        state = (state ^ (state >> np.uint64(30))) * MIX_A
        state = (state ^ (state >> np.uint64(27))) * MIX_B
    state = state ^ (state >> np.uint64(31))
    uniforms: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


# Joint sample paths.


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


def write_from_host(
    writer: PathWriter, batch: ContextBatch, horizon: int, places: NDArray[np.int64], out: Tensor
) -> None:
    """Make the paths of a batch that lies on an accelerator by the loops of the host, and copy them to `out`.

    Args:
        places: int64 [S], path s goes to out[:, places[s]].
        out: float32 [B, paths, H, N].
    """
    b, _, n = batch.values.shape
    paths = empty_paths(b, len(places), horizon, n, torch.device("cpu"))
    writer.write_paths(each_tensor(batch, Tensor.cpu), horizon, np.arange(len(places)), paths)
    put_paths(paths.to(out.device), places, out)


def empty_paths(num_rows: int, num_paths: int, horizon: int, num_indicators: int, device: torch.device) -> Tensor:
    """Uninitialised float32 [B, S, H, N].

    On a CPU the memory comes from numpy, which asks for huge pages: a quarter of the time of first touch.
    """
    shape = (num_rows, num_paths, horizon, num_indicators)
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, dtype=np.float32))
    return torch.empty(shape, dtype=torch.float32, device=device)


def compiled_rows(batch: ContextBatch, seed: int) -> BatchRows:
    """The rows of a batch on the CPU, as the compiled loops take them."""
    return BatchRows(
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
