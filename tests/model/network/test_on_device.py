"""The engine of accelerators: on a CPU for what it answers, on pretended tensors for what a capture forbids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from model.contract import COARSE_ROWS, ContextBatch
from model.network import cuda as on_device
from model.network.checkpoint import load
from model.network.cuda import SIZES, Buffers, DeviceEngine, chunks, compute
from model.network.forecaster import NetworkForecaster
from model.network.network import Network
from model.network.spec import SHIPPED
from tests.model.batches import random_batch
from tests.model.network.captured import HostIsAskedError, operations_of, pretend_network
from tests.model.network.recorded import RecordedGraph, pretend_cuda
from tests.model.network.untrained import small_network

_CPU = torch.device("cpu")
_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@given(st.integers(1, 3_000), st.integers(1, 2_000))
def test_chunks_cover_a_batch_in_order(rows: int, most: int) -> None:
    parts = list(chunks(rows, most))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == rows
    assert all(part.size in SIZES and part.size <= max(most, SIZES[0]) for part in parts)
    assert all(part.stop - part.start == part.size for part in parts[:-1]), "the last alone may be filled up"
    idle = parts[-1].size - (parts[-1].stop - parts[-1].start)
    assert idle >= 0
    assert idle == 0 or parts[-1].size == next(size for size in SIZES if size >= parts[-1].size - idle)


def _week(batch: ContextBatch, seed: int) -> ContextBatch:
    """With a week of ten-minute means of its first column, of which a day is missing."""
    ring = 30 + torch.randn(len(batch), COARSE_ROWS, 1, generator=torch.Generator().manual_seed(seed))
    seen = torch.ones_like(ring, dtype=torch.bool)
    seen[:, 300:444] = False
    return replace(batch, coarse=ring, coarse_observed=seen)


def _hopping(batch: ContextBatch) -> ContextBatch:
    """The first column takes turns between three values: mass lies on them."""
    steps = torch.arange(batch.values.shape[1])
    batch.values[:, :, 0] = torch.tensor([3.0, 9.0, 4.0])[steps // 3 % 3]
    return replace(batch, observed=batch.observed | (torch.arange(batch.values.shape[2]) == 0))


def _close(ours: Tensor, reference: Tensor, share: float = 1.0) -> bool:
    """Whether all but a few values are the same but for rounding: at an atom's edge a last bit decides."""
    scale = reference.abs().mean(dim=(0, 1, 2), keepdim=True)
    near = ((ours - reference).abs() <= 2e-3 * (reference.abs() + scale)) | (ours.isnan() & reference.isnan())
    return float(near.double().mean()) >= share


@pytest.mark.parametrize("rows", [1, 8, 11, 43])
def test_answers_as_the_loops_do_whatever_the_chunk(rows: int) -> None:
    network, batch = small_network(3), _week(random_batch(rows, seed=rows), rows)
    plain = NetworkForecaster(network, "0" * 12).forecast(batch, 7, 20)
    ours = NetworkForecaster(network, "0" * 12, device=_CPU).forecast(batch, 7, 20)
    assert (ours.sources, ours.fingerprint) == (plain.sources, plain.fingerprint)
    assert _close(ours.paths, plain.paths)
    ours.paths[0] += 1  # the caller's own


def test_the_shipped_network_answers_as_its_loops_do_with_atoms() -> None:
    checkpoint, batch = load(SHIPPED), _hopping(_week(random_batch(9, seed=5), 5))
    plain = NetworkForecaster(checkpoint.network, checkpoint.digest).forecast(batch, 20, 64).paths
    ours = NetworkForecaster(checkpoint.network, checkpoint.digest, device=_CPU).forecast(batch, 20, 64).paths
    assert _close(ours, plain, 0.998)
    values, counts = ours[..., 0].round(decimals=1).unique(return_counts=True)
    assert set(values[counts.argsort(descending=True)[:3]].tolist()) == {3.0, 4.0, 9.0}, "the atoms are drawn"


def test_columns_in_any_order_and_shapes_in_turn() -> None:
    network = small_network(4)
    plain, ours = NetworkForecaster(network, "0" * 12), NetworkForecaster(network, "0" * 12, device=_CPU)
    first = random_batch(10, seed=1)
    turned = replace(
        first,
        values=first.values.flip(2),
        observed=first.observed.flip(2),
        levels=first.levels.flip(0),
        indicators=first.indicators[::-1],
        lower=torch.arange(4.0),
        coarse=first.coarse[..., :0],
        coarse_observed=first.coarse_observed[..., :0],
    )
    for batch, horizon in ((turned, 5), (first, 5), (first, 9), (turned, 5)):
        assert _close(ours.forecast(batch, horizon, 20).paths, plain.forecast(batch, horizon, 20).paths)


def test_places_are_made_once_per_shape() -> None:
    engine = DeviceEngine(small_network(1), _CPU)

    def ask(rows: int, horizon: int) -> None:
        batch = random_batch(rows, seed=rows)
        engine.paths(batch, [0, 1, 2, 3], horizon, 4, lambda _, noise: noise.zero_())

    for _ in range(3):
        ask(9, 3)
        ask(40, 3)
    assert len(engine._places) == 2, "of 8 and of 32 rows"
    for horizon in range(1, 20):
        ask(1, horizon)
    assert len(engine._places) == 12


def _recorded(network: Network, patch: pytest.MonkeyPatch, said: list[str]) -> NetworkForecaster:
    """A forecaster whose engine takes the CPU for a GPU."""
    pretend_cuda(patch)
    patch.setattr(on_device, "_on_host", lambda like, **_: torch.empty_like(like, device="cpu"))
    forecaster = NetworkForecaster(network, "0" * 12, on_refusal=said.append, device=_CPU)
    forecaster._engine = DeviceEngine(network, _CPU, said.append)
    forecaster._engine._cuda = on_device._Cuda.of(_CPU)
    return forecaster


def test_a_replayed_capture_answers_for_what_has_arrived_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other values, gaps, rings, origins, bounds and order of columns than those that it was captured with."""
    network, said = small_network(5), list[str]()
    ours, plain = _recorded(network, monkeypatch, said), NetworkForecaster(network, "0" * 12)
    with torch.inference_mode():
        for seed, rows in ((1, 8), (2, 16), (3, 5), (4, 19)):
            batch = _week(random_batch(rows, seed=seed), seed)
            batch = replace(
                batch,
                origin_ts_ms=batch.origin_ts_ms + 3_600_000 * seed,
                lower=torch.full((4,), -1.0 * seed),
                upper=torch.tensor([1e9, 30.0 + seed, 1e9, 1e9]),
            )
            if seed == 3:  # the second and third change places: another way back
                batch = replace(batch, indicators=("i0", "i2", "i1", "i3"))
            assert _close(ours.forecast(batch, 6, 20).paths, plain.forecast(batch, 6, 20).paths)
    assert said == []
    engine = ours._engine
    assert engine is not None
    graphs = [place._graph for _, pair in engine._places.values() for place in pair]
    # Seven chunks in turn, and one replay of each to compare.
    assert [graph.replays for graph in graphs if isinstance(graph, RecordedGraph)] == [4 + 1, 3 + 1]


def test_a_capture_that_cannot_be_or_answers_otherwise_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = small_network(6), random_batch(3, seed=1)
    plain = NetworkForecaster(network, "0" * 12).forecast(batch, 3, 20).paths
    said: list[str] = []
    ours = _recorded(network, monkeypatch, said)
    monkeypatch.setattr(RecordedGraph, "replay", lambda _: None)
    for _ in range(3):
        assert _close(ours.forecast(batch, 3, 20).paths, plain)
    assert len(said) == 2, "once for each place"
    assert said[0] == "the network runs without a graph for (8, 4, 3, 20): what was captured answers otherwise"
    said.clear()

    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    ours = _recorded(network, monkeypatch, said)
    monkeypatch.setattr(torch.cuda, "graph", refused)
    assert _close(ours.forecast(batch, 3, 20).paths, plain)
    assert "could not be captured: operation not permitted" in said[0]


class _Lost(DeviceEngine):
    def paths(self, *_: object) -> Tensor:
        raise RuntimeError("CUDA error: out of memory")


def _busy(*_: object) -> DeviceEngine:
    raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize("engine", [_Lost, _busy])
def test_a_device_that_fails_is_given_up_and_the_cpu_answers(monkeypatch: pytest.MonkeyPatch, engine: object) -> None:
    monkeypatch.setattr("model.network.forecaster.DeviceEngine", engine)
    said: list[str] = []
    network, batch = small_network(2), random_batch(3, seed=2)
    ours = NetworkForecaster(network, "0" * 12, on_refusal=said.append, device=_CPU)
    plain = NetworkForecaster(network, "0" * 12).forecast(batch, 4, 20)
    for _ in range(2):
        assert torch.equal(ours.forecast(batch, 4, 20).paths, plain.paths)
    assert said == ["the network runs on the CPU from now on, its device failed: CUDA error: out of memory"]


@pytest.mark.parametrize("changes", [{}, {"attention": "flat"}, {"attention": "none", "places": True}])
@pytest.mark.parametrize(("length", "columns", "ring"), [(128, 3, True), (40, 1, False), (1_500, 5, True)])
def test_nothing_in_a_capture_asks_the_host(changes: dict[str, object], length: int, columns: int, ring: bool) -> None:
    batch = random_batch(2, seed=1, length=length, num_indicators=columns)
    batch = _week(batch, 1) if ring else replace(batch, coarse=batch.coarse[..., :0])
    network = small_network(1, **changes)

    def work(pretend: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        buffers = Buffers.of(batch, 8, 20, 32).each(pretend)
        pretend_network(network, pretend)
        return lambda: compute(network, buffers)

    assert operations_of(work) > 1_000


def test_the_check_of_a_capture_sees_what_it_is_for() -> None:
    def asked(work: Callable[[Tensor], object]) -> int:
        def on(pretend: Callable[[Tensor], Tensor]) -> Callable[[], object]:
            there = pretend(torch.arange(3.0))
            return lambda: work(there)

        return operations_of(on)

    with pytest.raises(HostIsAskedError):
        asked(lambda x: x + torch.tensor([1.0, 2.0, 3.0]).to("cuda"))
    with pytest.raises(HostIsAskedError):
        asked(lambda x: x[[0, 2]])
    with pytest.raises(DataDependentOutputException):
        asked(lambda x: bool(x.sum() > 0))
    with pytest.raises(DynamicOutputShapeException):
        asked(lambda x: x[x > 1])
    assert asked(lambda x: x[torch.arange(2, device="cuda")] + 1) == 3


@pytest.mark.gpu
@_GPU
def test_a_gpu_answers_as_the_cpu_does_by_graphs() -> None:
    checkpoint, batch, said = load(SHIPPED), _hopping(_week(random_batch(700, seed=6), 6)), list[str]()
    plain = NetworkForecaster(checkpoint.network, checkpoint.digest).forecast(batch, 20, 64).paths
    ours = NetworkForecaster(checkpoint.network, checkpoint.digest, on_refusal=said.append, device=torch.device("cuda"))
    for _ in range(3):  # captured first, then replayed on both places
        assert _close(ours.forecast(batch, 20, 64).paths, plain, 0.998)
    assert said == [], "who could not be captured would have said so"
