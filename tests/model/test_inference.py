"""The inference thread: order, errors, back-pressure, closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from model.baselines.ridge import RidgeForecaster
from model.contract import ContextBatch, ForecastBatch
from model.inference import InferenceClosedError, InferenceWorker
from tests.model.batches import random_batch

BATCH = random_batch(1, seed=1)


class Gated:
    """Waits for its gate before every answer; an odd horizon fails."""

    fingerprint, max_horizon, min_context = "gated", 64, 1

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.horizons: list[int] = []
        self.threads: set[tuple[str, int]] = set()

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        self.horizons.append(horizon)
        self.threads.add((threading.current_thread().name, torch.get_num_threads()))
        self.started.release()
        assert self.gate.acquire(timeout=10)
        if horizon % 2:
            raise ValueError(f"horizon {horizon} is odd")
        return ForecastBatch(torch.zeros(1, num_paths, horizon, 4), ("gated",), "gated")


@pytest.fixture
def gated() -> Gated:
    return Gated()


@pytest.fixture
def worker(gated: Gated) -> Iterator[InferenceWorker]:
    made = InferenceWorker(gated, max_pending=2)
    yield made
    gated.gate.release(100)
    made.close()


def test_answers_in_order_on_one_thread(gated: Gated, worker: InferenceWorker) -> None:
    futures = [worker.submit(BATCH, 2, 3), worker.submit(BATCH, 4, 3)]
    gated.gate.release(2)
    assert [f.result(10).paths.shape[2] for f in futures] == [2, 4]
    assert gated.horizons == [2, 4]
    assert gated.threads == {("inference", 1)}


def test_an_error_arrives_in_its_own_future(gated: Gated, worker: InferenceWorker) -> None:
    bad, good = worker.submit(BATCH, 3, 3), worker.submit(BATCH, 2, 3)
    gated.gate.release(2)
    with pytest.raises(ValueError, match="horizon 3 is odd"):
        bad.result(10)
    assert good.result(10).sources == ("gated",)


def test_a_full_worker_holds_the_submitting_thread(gated: Gated, worker: InferenceWorker) -> None:
    worker.submit(BATCH, 2, 3), worker.submit(BATCH, 2, 3)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(worker.submit, BATCH, 4, 3)
        assert gated.started.acquire(timeout=10)
        assert not third.done()
        gated.gate.release()
        answer = third.result(10)
        assert not answer.done()
        gated.gate.release(2)
        assert answer.result(10).paths.shape[2] == 4


async def test_a_full_worker_does_not_hold_the_loop(gated: Gated, worker: InferenceWorker) -> None:
    tasks = [asyncio.create_task(worker.forecast(BATCH, h, 3)) for h in (2, 4, 6, 8)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    gated.gate.release(4)
    answers = [await asyncio.wait_for(tasks[k], 10) for k in (0, 1, 3)]
    assert [a.paths.shape[2] for a in answers] == [2, 4, 8]
    assert gated.horizons == [2, 4, 8]


async def test_cancelled_callers_leak_no_place(gated: Gated, worker: InferenceWorker) -> None:
    gated.gate.release(1000)
    for _ in range(20):
        tasks = [asyncio.create_task(worker.forecast(BATCH, 2, 3)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    answers = await asyncio.wait_for(asyncio.gather(*(worker.forecast(BATCH, 4, 3) for _ in range(4))), 10)
    assert len(answers) == 4


class HandedOver(Future[None]):
    """A place that is claimed for the one who waits, and stays on its way until the test lets it arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed, self.arrives = threading.Event(), threading.Event()

    def set_result(self, result: None) -> None:
        self.claimed.set()
        assert self.arrives.wait(10)
        super().set_result(result)


async def test_a_caller_cancelled_while_its_place_is_on_its_way_leaks_none(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, place = InferenceWorker(gated, max_pending=1), HandedOver()
    running = worker.submit(BATCH, 2, 3)
    with monkeypatch.context() as patched:
        patched.setattr("model.inference.Future", lambda: place)
        waiting = asyncio.create_task(worker.forecast(BATCH, 4, 3))
        await asyncio.sleep(0)
    gated.gate.release(2)
    assert await asyncio.to_thread(place.claimed.wait, 10)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    place.arrives.set()
    answer = await asyncio.wait_for(worker.forecast(BATCH, 6, 3), 10)
    assert (answer.paths.shape[2], running.done(), gated.horizons) == (6, True, [2, 6])
    worker.close()


def test_closing_fails_those_that_wait_and_refuses_new_ones(gated: Gated) -> None:
    worker = InferenceWorker(gated, max_pending=2)
    running, waiting = worker.submit(BATCH, 2, 3), worker.submit(BATCH, 2, 3)
    assert gated.started.acquire(timeout=10)
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(worker.submit, BATCH, 2, 3)
        closing = threading.Thread(target=worker.close)
        closing.start()
        with pytest.raises(InferenceClosedError):
            blocked.result(10)
    gated.gate.release()
    closing.join(10)
    assert running.result(10).sources == ("gated",)
    with pytest.raises(InferenceClosedError):
        waiting.result(10)
    with pytest.raises(InferenceClosedError):
        worker.submit(BATCH, 2, 3)
    worker.close()


def test_reports_seconds_and_equals_the_plain_forecast() -> None:
    seconds: list[float] = []
    batch = random_batch(9, seed=2)
    worker = InferenceWorker(RidgeForecaster(), on_inference_seconds=seconds.append)
    paths = worker.submit(batch, 5, 20).result(30).paths
    worker.close()
    assert torch.equal(paths, RidgeForecaster().forecast(batch, 5, 20).paths)
    assert len(seconds) == 1
    assert seconds[0] > 0
