"""The network on an accelerator: chunks of a few fixed shapes, each captured as a CUDA graph, copies beside the work.

A batch is cut into chunks of a few sizes. A size has two places with buffers of their own: while one is computed, the
host draws the noise of the other, and inputs and answers are copied on streams of their own. What a place needs is
allocated when its shape is first seen, and what it does, some thousand small operations, is captured then: afterwards
the host starts it with one call. A capture that fails, or answers otherwise than the operations one by one, is left,
and said to be.
Where there are no streams the same steps run one after the other: all but the capture is the same on a CPU.
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
_MAX_CHUNK_VALUES: Final = 1 << 24  # of a chunk's paths: some ten intermediates of theirs stand at once
_MAX_CAPTURED_SHAPES: Final = 12  # shapes, the one used longest ago is given up for a new one
_MAX_DRAW_THREADS: Final = 8
_WARM_UPS: Final = 2  # before a capture: libraries choose their kernels and take their workspaces

Draw = Callable[[int, Tensor], None]


class Chunk(NamedTuple):
    """Rows `start` up to `stop` of a batch, on a place for `size` rows."""

    start: int
    stop: int
    size: int


def chunks(rows: int, most: int, sizes: tuple[int, ...] = SIZES) -> Iterator[Chunk]:
    """A batch in chunks of known sizes: as large as is full, and what is left over on the smallest that holds it.

    Args:
        most: rows of a chunk for which there is memory; the smallest size is always allowed.
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
    """Streams on which inputs arrive, are computed, and answers leave, and memory that graphs share.

    Graphs run one after the other on one stream, and what they leave lies outside: none needs memory of its own.
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
    """Paths of the network, computed on a device and brought back to the host.

    Args:
        network: trained; copied to the device.
        device: an accelerator; a CPU runs the same steps in order.
        on_eager: told, in a sentence, why a shape runs without a graph.
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
            back: where each column of the answer stands among the batch's.
            draw: writes the standard normals [N, H, S] of a row; called from several threads.
        """
        b, _, n = batch.values.shape
        with torch.inference_mode(mode=False):  # whoever gets them may write into them
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
        """The next of the two places of a shape."""
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
    """What goes to the device for a chunk, and what comes back.

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
        """For `size` rows like those of a batch, on the host; their memory is not touched."""
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
        """The same change of every tensor."""
        return Buffers(each_tensor(self.batch, change), change(self.back), change(self.noise), change(self.answer))

    def inputs(self) -> list[Tensor]:
        """All but the answer."""
        return [*(getattr(self.batch, name) for name in (*PER_ROW, *PER_COLUMN)), self.back, self.noise]


def compute(network: Network, on: Buffers) -> None:
    """From the inputs to the answer, by operations whose shapes no data decides and that ask the host for nothing."""
    horizon = on.noise.shape[2]
    law = network(extract_features(on.batch, network.spec, loops=False), horizon)
    values = law.sample(on.noise, loops=False, fixed=True)  # [R, N, H, S]
    moving, newest = law.context.moving[..., None, None], law.context.newest[..., None, None]
    paths = torch.where(moving, values, newest).permute(0, 3, 2, 1)
    bounded = paths.clamp(on.batch.lower, on.batch.upper)
    on.answer.copy_(bounded.index_select(-1, on.back))


def _on_host(like: Tensor, *, pinned: bool) -> Tensor:
    """Memory of the host that is not touched yet; pinned, a device copies from and to it while the host goes on."""
    return torch.empty_like(like, device="cpu", pin_memory=pinned)


class _Place:
    """Buffers on both sides for chunks of one shape, and the graph that was captured on them."""

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
        self._tried = False
        self._left: torch.cuda.Event | None = None  # set while an answer may be on its way

    def fill(self, batch: ContextBatch, back: list[int], chunk: Chunk, drawers: ThreadPoolExecutor, draw: Draw) -> None:
        """Rows of a batch and their noise into the host's buffers; the last row once more where there are too few."""
        count = chunk.stop - chunk.start
        drawn = [drawers.submit(draw, chunk.start + r, self._host.noise[r]) for r in range(count)]
        self._host.noise[count:].zero_()
        for name in PER_ROW:
            there, rows = getattr(self._host.batch, name), getattr(batch, name)[chunk.start : chunk.stop]
            there[:count] = rows
            there[count:] = rows[-1:]
        for name in PER_COLUMN:
            getattr(self._host.batch, name).copy_(getattr(batch, name))
        self._host.back.copy_(torch.tensor(back))
        for row in drawn:
            row.result()

    def start(self, out: Tensor) -> None:
        """Begin to compute what was filled in; its first rows go to `out` [R, S, H, N], by `finish` at the latest."""
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
            if not self._tried:
                self._tried, self._graph = True, self._captured(cuda)
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
        """Wait until the answer that is under way, if any, has come."""
        if self._left is not None:
            self._left.synchronize()
            self._left = None

    def _arrive(self) -> None:
        for here, there in zip(self._host.inputs(), self._there.inputs(), strict=True):
            there.copy_(here, non_blocking=True)

    def _captured(self, cuda: _Cuda) -> torch.cuda.CUDAGraph | None:
        """The work as one graph; None where it cannot be captured or answers otherwise."""
        shape = tuple(self._there.noise.shape)
        for _ in range(_WARM_UPS):
            compute(self._network, self._there)
        wanted = self._there.answer.clone()
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
        if not torch.allclose(self._there.answer, wanted, rtol=1e-3, atol=1e-5, equal_nan=True):
            self._on_eager(f"the network runs without a graph for {shape}: what was captured answers otherwise")
            return None
        return graph
