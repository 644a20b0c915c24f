"""`harmony bench inference`: cost of a forecast by batch size, beside the matrix products of its network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from infra.console.options import say
from infra.lab.report import document, load_average, print_table, spread, write_json
from model.contract import COARSE_ROWS, ContextBatch, each_tensor
from model.network.features import extract_features
from model.network.network import Network

_STEP_MS = 15_000
_ORIGIN_TS_MS = 1_763_636_400_000
_NAMES = ("request.arrival_rate", "request.prompt_token_rate", "request.output_token_rate")
_SQUARE = {"cpu": 768, "cuda": 8192}  # of the products that tell a device's rate
_COPIED_MIB = {"cpu": 64, "cuda": 512}
_Subject = Callable[[ContextBatch, int, int], object]


@dataclass(frozen=True, slots=True)
class InferenceBench:
    """What to measure.

    Attributes:
        batches: windows in one call, ascending.
        rows, horizon, paths: L, H and S; the windows hold three demand columns, as a worker gives the network.
    """

    rounds: int = 3
    batches: tuple[int, ...] = (1, 64, 1024)
    rows: int = 128
    horizon: int = 20
    paths: int = 256


def run_inference_bench(bench: InferenceBench, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and return the document (also stored in `out`)."""
    torch.set_num_threads(1)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows: list[dict[str, Any]] = []
    loads, ceilings = [load_average()], []
    for device in devices:
        network, subjects = _subjects(torch.device(device))
        ceilings.append(_ceilings(torch.device(device)))
        flops = _flops_per_window(network, len(_NAMES), bench.horizon)
        for size in bench.batches:
            batch = _batch(size, bench)
            say(f"  {device}, {size:,} windows ...")
            timings: dict[str, list[float]] = {name: [] for name in (*subjects, "floor")}
            for subject in subjects.values():  # compiled, cached and allocated before anything is timed
                subject(batch, bench.horizon, bench.paths)
            for _ in range(bench.rounds):  # in turn: what the machine does meanwhile meets all of them
                rate = _matrix_flops_per_s(torch.device(device))
                timings["floor"].append(size * flops / rate)
                for name, subject in subjects.items():
                    work = partial(subject, batch, bench.horizon, bench.paths)
                    timings[name].append(_seconds(work, torch.device(device)))
                loads.append(load_average())
            floor, eager = median(timings["floor"]), median(timings["eager"])
            for name, seconds in timings.items():
                rows.append(
                    {
                        "device": device,
                        "subject": name,
                        "windows": size,
                        "ms": spread([1e3 * s for s in seconds]),
                        "us_per_window": 1e6 * median(seconds) / size,
                        "over_floor": median(seconds) / floor,
                        "of_eager": median(seconds) / eager,
                    }
                )
    job = {
        "rounds": bench.rounds,
        "rows": bench.rows,
        "columns": len(_NAMES),
        "horizon": bench.horizon,
        "paths": bench.paths,
        "threads": 1,
        "devices": [torch.cuda.get_device_name() if d == "cuda" else "cpu" for d in devices],
        "ceilings": ceilings,
    }
    body = document("inference", job, rows, loads)
    write_json(out, body)
    print_table(
        ("", "device", "windows", "ms a call", "us a window", "over floor", "of eager"),
        [
            (
                row["subject"],
                row["device"],
                f"{row['windows']:,}",
                f"{row['ms']['median']:.2f} ({row['ms']['min']:.2f}-{row['ms']['max']:.2f})",
                f"{row['us_per_window']:,.0f}",
                f"{row['over_floor']:.1f}",
                f"{row['of_eager']:.2f}",
            )
            for row in rows
        ],
        "floor: the network's matrix products alone, at the rate this device reaches on large ones in the same round;"
        " eager: the network as plain PyTorch, the whole batch at once. All but the floor begin and end on the host",
    )
    for device, ceiling in zip(devices, ceilings, strict=True):
        say(
            f"  {device}: {ceiling['gemm_gflop_per_s']:,.0f} GFLOP/s in large products,"
            f" {ceiling['memory_gb_per_s']:,.1f} GB/s in its memory, {ceiling['copy_gb_per_s']:,.1f} GB/s from the host"
        )
    return body


def _subjects(device: torch.device) -> tuple[Network, dict[str, _Subject]]:
    """The shipped network on a device, and what is measured there: the first of them finds its weights in place.

    Of an accelerator the network alone makes use: the baselines, and what joins them, run on the host.
    """
    from model.network.checkpoint import load
    from model.network.forecaster import NetworkForecaster, baselines, combined
    from model.network.spec import SHIPPED

    checkpoint = load(SHIPPED)
    network = checkpoint.network.to(device)
    engine = device if device.type == "cuda" else None
    forecaster = NetworkForecaster(load(SHIPPED).network, checkpoint.digest, on_refusal=say, device=engine)
    return network, {
        "eager": partial(_eager, network),
        "network": forecaster.forecast,
        "combined": combined(forecaster).forecast,
        "pool": baselines().forecast,
    }


def _eager(network: Network, batch: ContextBatch, horizon: int, paths: int) -> Tensor:
    """What the network would be without an engine: tensors throughout, one product per layer for the whole batch."""
    device = network.trust.device
    noise = torch.randn((*batch.values.shape[::2], horizon, paths), device=device)
    moved = each_tensor(batch, lambda part: part.to(device))
    with torch.enable_grad():  # else its layers multiply row by row; nothing here has a gradient
        law = network(extract_features(moved, network.spec, loops=False), horizon)
    return law.sample(noise, loops=False).permute(0, 3, 2, 1).float().cpu()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    started = perf_counter()
    work()
    _wait(device)
    return perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the quickest of five, after one that is not timed."""
    work()
    return min(_seconds(work, device) for _ in range(5))


def _matrix_flops_per_s(device: torch.device) -> float:
    side = _SQUARE[device.type]
    a = torch.randn(side, side, device=device)
    return 2 * side**3 / _fastest(lambda: a @ a, device)


def _ceilings(device: torch.device) -> dict[str, float]:
    """What the device can do at most: multiply, move within its memory (read and written), take from the host."""
    count = _COPIED_MIB[device.type] << 20
    here = torch.zeros(count, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there, other = (torch.zeros(count, dtype=torch.uint8, device=device) for _ in range(2))
    return {
        "gemm_gflop_per_s": _matrix_flops_per_s(device) / 1e9,
        "memory_gb_per_s": 2 * count / _fastest(lambda: other.copy_(there), device) / 1e9,
        "copy_gb_per_s": count / _fastest(lambda: there.copy_(here, non_blocking=True), device) / 1e9,
    }


def _flops_per_window(network: torch.nn.Module, columns: int, horizon: int) -> float:
    """Of the layers' products: those of the head run at every step, the others once per column."""
    once = stepwise = 0
    for name, weight in network.named_parameters():
        if weight.dim() == 2:
            part = 2 * weight.numel()
            once, stepwise = (once, stepwise + part) if name.startswith("head.") else (once + part, stepwise)
    return float(columns * (once + horizon * stepwise))


def _batch(size: int, bench: InferenceBench) -> ContextBatch:
    """Windows of a daily wave with noise, each at another time of day, with a week of ten-minute means."""
    draw = torch.Generator().manual_seed(11)
    n = len(_NAMES)

    def wave(rows: int, step_s: float) -> Tensor:
        ago_s = torch.arange(rows - 1, -1, -1) * step_s
        phase = torch.arange(size)[:, None] * 137.0 - ago_s
        course = 20 + 8 * torch.sin(phase * (2 * torch.pi / 86_400))  # [B, rows]
        return (course[..., None] + torch.randn(size, rows, n, generator=draw)).clamp(min=0)

    values, coarse = wave(bench.rows, _STEP_MS / 1000), wave(COARSE_ROWS, 600.0)
    return ContextBatch(
        item_ids=tuple(f"bench/service-{k}" for k in range(size)),
        origin_ts_ms=_ORIGIN_TS_MS + _STEP_MS * torch.arange(size),
        step_ms=_STEP_MS,
        values=values,
        observed=torch.ones_like(values, dtype=torch.bool),
        coarse=coarse,
        coarse_observed=torch.ones_like(coarse, dtype=torch.bool),
        levels=torch.ones(n, dtype=torch.int64),
        indicators=_NAMES,
        lower=torch.zeros(n),
        upper=torch.full((n,), torch.inf),
    )
