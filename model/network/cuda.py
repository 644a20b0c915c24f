"""The network on an accelerator: chunks of fixed shapes, each captured as a CUDA graph, with copies in parallel.

A batch is cut into chunks of a few sizes. Each size has two sets of buffers, which are used in turn. While one set is
computed, the host draws the noise of the other; inputs and paths are copied on streams of their own.
Buffers are allocated when a shape first occurs. The computation is some thousand small operations; they are captured as
a graph, which the host then starts with one call. If a capture fails, or gives other paths than the operations one by
one, the shape runs without a graph, and `on_eager` gets a sentence.
Without streams the same steps run one after the other: all but the capture is the same on a CPU.
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from model.contract import PER_COLUMN, PER_ROW, ContextBatch, each_tensor
from model.network.features import extract_features
from model.network.network import Network

SIZES: Final = (8, 32, 128, 512)  # rows of a chunk
_MAX_CHUNK_VALUES: Final = 1 << 24  # values in the paths of a chunk; about ten intermediates of this size exist at once
_MAX_CAPTURED_SHAPES: Final = 12  # the least recently used shape makes room for a new one
_MAX_DRAW_THREADS: Final = 8
_WARM_UPS: Final = 2  # runs before a capture, in which libraries choose kernels and allocate workspaces

Draw = Callable[[int, Tensor], None]


class Chunk(NamedTuple):
    """Rows `start` up to `stop` of a batch, in buffers for `size` rows."""

    start: int
    stop: int
    size: int


def chunks(rows: int, most: int, sizes: tuple[int, ...] = SIZES) -> Iterator[Chunk]:
    """A batch in chunks of the given sizes: the largest that are full, then the smallest that holds the rest.

    >>> [chunk.size for chunk in chunks(45, most=32, sizes=(8, 32))]
    [32, 8, 8]

    Args:
        rows: of the batch.
        most: rows of a chunk for which there is memory; the smallest size is always allowed.
        sizes: ascending.
    """
    allowed = [size for size in sizes if size <= most] or [sizes[0]]
    start = 0
    while start < rows:
        left = rows - start
        full = [size for size in allowed if size <= left]
        size = full[-1] if full else next(size for size in allowed if size >= left)
        yield Chunk(start, min(start + size, rows), size)
        start += size


@dataclass(frozen=True, slots=True)
class _Cuda:
    """Streams for inputs, computation and results, and the memory pool that graphs share.

    Graphs run one after the other on one stream and write their results outside the pool, so they can share it.
    """

    arrive: torch.cuda.Stream
    compute: torch.cuda.Stream
    leave: torch.cuda.Stream
    pool: Any

    @classmethod
    def of(cls, device: torch.device) -> _Cuda:
        """On a device."""
        arrive, compute, leave = (torch.cuda.Stream(device) for _ in range(3))  # type: ignore[no-untyped-call]
        return cls(arrive, compute, leave, torch.cuda.graph_pool_handle())


class DeviceEngine:
    """Paths of the network, computed on a device and copied to the host.

    Args:
        network: trained; copied to the device.
        device: an accelerator; a CPU runs the same steps in order.
        on_eager: receives a sentence that says why a shape runs without a graph.
    """

    def __init__(
        self, network: Network, device: torch.device, on_eager: Callable[[str], None] = lambda _: None
    ) -> None:
        self._network = copy.deepcopy(network).to(device)
        self._device, self._on_eager = device, on_eager
        self._cuda = _Cuda.of(device) if device.type == "cuda" else None
        self._places: OrderedDict[tuple[int, ...], tuple[Iterator[_Place], list[_Place]]] = OrderedDict()
        self._drawers = ThreadPoolExecutor(min(_MAX_DRAW_THREADS, os.cpu_count() or 1), "draws")

    def paths(self, batch: ContextBatch, back: list[int], horizon: int, num_paths: int, draw: Draw) -> Tensor:
        """Sample paths [B, S, H, N] float32 on the host, within the bounds.

        Args:
            batch: on the host, columns in canonical order.
            back: index in the batch of each column of the result.
            draw: writes the standard normals [N, H, S] of a row; called from several threads.
        """
        b, _, n = batch.values.shape
        with torch.inference_mode(mode=False):  # callers may write into the result
            out = _on_host(torch.empty((b, num_paths, horizon, n), device="meta"), pinned=self._cuda is not None)
        busy: list[_Place] = []
        with torch.inference_mode():
            for chunk in chunks(b, _MAX_CHUNK_VALUES // (n * horizon * num_paths)):
                place = self._place(batch, chunk.size, horizon, num_paths)
                place.finish()
                place.fill(batch, back, chunk, self._drawers, draw)
                place.start(out[chunk.start : chunk.stop])
                busy.append(place)
            for place in busy:
                place.finish()
        return out

    def _place(self, batch: ContextBatch, size: int, horizon: int, num_paths: int) -> _Place:
        """The next of the two sets of buffers of a shape."""
        shape = (size, *batch.values.shape[1:], *batch.coarse.shape[1:], horizon, num_paths, batch.step_ms)
        pair_of_shape = self._places.get(shape)
        if pair_of_shape is None:
            with torch.inference_mode(mode=False):  # other threads write into them
                like = Buffers.of(batch, size, horizon, num_paths)
                pair = [_Place(self._network, like, self._device, self._cuda, self._on_eager) for _ in range(2)]
            pair_of_shape = self._places[shape] = (cycle(pair), pair)
            if len(self._places) > _MAX_CAPTURED_SHAPES:
                _, (_, unused) = self._places.popitem(last=False)
                for place in unused:
                    place.finish()
        self._places.move_to_end(shape)
        return next(pair_of_shape[0])


@dataclass(frozen=True, slots=True)
class Buffers:
    """Inputs and result of a chunk on one side.

    Attributes:
        batch: R rows; its item ids are not read.
        back: int64 [N].
        noise: [R, N, H, S].
        answer: [R, S, H, N].
    """

    batch: ContextBatch
    back: Tensor
    noise: Tensor
    answer: Tensor

    @classmethod
    def of(cls, batch: ContextBatch, size: int, horizon: int, num_paths: int) -> Buffers:
        """Uninitialised buffers on the host for `size` rows like those of a batch."""
        n = batch.values.shape[2]
        rows: dict[str, Any] = {}
        for name in PER_ROW:
            part = getattr(batch, name)
            rows[name] = torch.empty((size, *part.shape[1:]), dtype=part.dtype)
        return cls(
            replace(batch, item_ids=("",) * size, **rows),
            torch.empty(n, dtype=torch.int64),
            torch.empty(size, n, horizon, num_paths),
            torch.empty(size, num_paths, horizon, n),
        )

    def each(self, change: Callable[[Tensor], Tensor]) -> Buffers:
        """Buffers with `change` applied to every tensor."""
        return Buffers(each_tensor(self.batch, change), change(self.back), change(self.noise), change(self.answer))

    def inputs(self) -> list[Tensor]:
        """All tensors but the result."""
        return [*(getattr(self.batch, name) for name in (*PER_ROW, *PER_COLUMN)), self.back, self.noise]


def compute(network: Network, on: Buffers) -> None:
    """Compute the result from the inputs, with shapes that do not depend on data and without waiting for the host."""
    horizon = on.noise.shape[2]
    law = network(extract_features(on.batch, network.spec, loops=False), horizon)
    values = law.sample(on.noise, loops=False, fixed=True)  # [R, N, H, S]
    moving, newest = law.context.moving[..., None, None], law.context.newest[..., None, None]
    paths = torch.where(moving, values, newest).permute(0, 3, 2, 1)
    bounded = paths.clamp(on.batch.lower, on.batch.upper)
    on.answer.copy_(bounded.index_select(-1, on.back))


def _on_host(like: Tensor, *, pinned: bool) -> Tensor:
    """Uninitialised memory of the host; a device copies pinned memory while the host continues."""
    return torch.empty_like(like, device="cpu", pin_memory=pinned)


class _Place:
    """Buffers on host and device for chunks of one shape, and the graph captured on them."""

    def __init__(
        self,
        network: Network,
        like: Buffers,
        device: torch.device,
        cuda: _Cuda | None,
        on_eager: Callable[[str], None],
    ) -> None:
        self._network, self._cuda, self._on_eager = network, cuda, on_eager
        self._host = like.each(lambda part: _on_host(part, pinned=cuda is not None))
        self._there = like.each(lambda part: torch.empty_like(part, device=device))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._capture_attempted = False
        self._left: torch.cuda.Event | None = None  # set while a result may be in transit

    def fill(self, batch: ContextBatch, back: list[int], chunk: Chunk, drawers: ThreadPoolExecutor, draw: Draw) -> None:
        """Copy rows of a batch and draw their noise into the host's buffers; the last row fills up a short chunk."""
        count = chunk.stop - chunk.start
        futures = [drawers.submit(draw, chunk.start + r, self._host.noise[r]) for r in range(count)]
        self._host.noise[count:].zero_()
        for name in PER_ROW:
            there, rows = getattr(self._host.batch, name), getattr(batch, name)[chunk.start : chunk.stop]
            there[:count] = rows
            there[count:] = rows[-1:]
        for name in PER_COLUMN:
            getattr(self._host.batch, name).copy_(getattr(batch, name))
        self._host.back.copy_(torch.tensor(back))
        for row in futures:
            row.result()

    def start(self, out: Tensor) -> None:
        """Start the computation; `out` [R, S, H, N] holds the first rows when `finish` returns."""
        cuda = self._cuda
        if cuda is None:
            self._arrive()
            compute(self._network, self._there)
            out.copy_(self._there.answer[: len(out)])
            return
        arrived, computed, self._left = (torch.cuda.Event() for _ in range(3))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(cuda.arrive):
            self._arrive()
            arrived.record()
        with torch.cuda.stream(cuda.compute):
            cuda.compute.wait_event(arrived)
            if not self._capture_attempted:
                self._capture_attempted, self._graph = True, self._captured(cuda)
            if self._graph is None:
                compute(self._network, self._there)
            else:
                self._graph.replay()
            computed.record()
        with torch.cuda.stream(cuda.leave):
            cuda.leave.wait_event(computed)
            out.copy_(self._there.answer[: len(out)], non_blocking=True)
            self._left.record()

    def finish(self) -> None:
        """Wait for the result in transit, if there is one."""
        if self._left is not None:
            self._left.synchronize()
            self._left = None

    def _arrive(self) -> None:
        for here, there in zip(self._host.inputs(), self._there.inputs(), strict=True):
            there.copy_(here, non_blocking=True)

    def _captured(self, cuda: _Cuda) -> torch.cuda.CUDAGraph | None:
        """The computation as one graph; None if it cannot be captured or gives other paths."""
        shape = tuple(self._there.noise.shape)
        for _ in range(_WARM_UPS):
            compute(self._network, self._there)
        expected = self._there.answer.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, cuda.pool, cuda.compute, capture_error_mode="thread_local"):
                compute(self._network, self._there)
            self._there.answer.zero_()
            graph.replay()
            cuda.compute.synchronize()
        except RuntimeError as error:
            self._on_eager(f"the network runs without a graph for {shape}, which could not be captured: {error}")
            return None
        if not torch.allclose(self._there.answer, expected, rtol=1e-3, atol=1e-5, equal_nan=True):
            self._on_eager(f"the network runs without a graph for {shape}: what was captured answers otherwise")
            return None
        return graph
