"""The one thread that runs the forecaster, behind a bounded queue.

One thread because the device is one: batches of all partitions go through it in order, on a fixed number of torch
threads, so that a forecast cannot depend on what runs beside it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from model.contract import ContextBatch, ForecastBatch, Forecaster


class InferenceClosedError(RuntimeError):
    """The worker was closed before the batch was forecast."""


@dataclass(frozen=True, slots=True)
class _Job:
    batch: ContextBatch
    horizon: int
    num_paths: int
    forecaster: Forecaster
    answer: Future[ForecastBatch]


class _Slots:
    """A counter of free places, awaitable from threads and from asyncio through the future that `take` returns."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()

    def take(self) -> Future[None]:
        """Done when a place is held. Cancelling it while it waits gives up the wait."""
        place: Future[None] = Future()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                place.set_running_or_notify_cancel()
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def give(self) -> None:
        """Hand a place to the one that has waited longest, or keep it free."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        place.set_result(None)

    def give_back(self, place: Future[None]) -> None:
        """Give on a place that came to one who no longer wants it; the wait may have ended without one."""
        if not place.cancelled() and place.exception() is None:
            self.give()

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits that no place will come."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for place in waiting:
            if place.set_running_or_notify_cancel():
                place.set_exception(error)


class InferenceWorker:
    """Runs a forecaster in its own thread; errors arrive in the future of the batch that caused them.

    Back-pressure: at most `max_pending` batches are queued or running. `submit` blocks its thread until there is a
    place; from asyncio use `await forecast(...)`, which waits without blocking the loop.

    Args:
        forecaster: used by the worker's thread alone. Batches and paths lie on the host; a forecaster that computes
            elsewhere moves them itself. Paths may be inference tensors: read, slice and copy them, but do not write
            into them.
        max_pending: batches queued or running.
        num_threads: torch threads of the worker. One by default: on a host whose cores are shared with a broker,
            threads that wait for each other at the end of every small operation take many times longer than one.
        on_inference_seconds: told the time of every forecast, from the worker's thread.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        max_pending: int = 4,
        num_threads: int = 1,
        on_inference_seconds: Callable[[float], None] | None = None,
    ) -> None:
        if max_pending < 1 or num_threads < 1:
            raise ValueError(f"max_pending {max_pending} and num_threads {num_threads} must be at least 1")
        self.forecaster = forecaster
        self._num_threads = num_threads
        self._on_inference_seconds = on_inference_seconds
        self._slots = _Slots(max_pending)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)
        self._thread.start()

    def submit(self, batch: ContextBatch, horizon: int, num_paths: int) -> Future[ForecastBatch]:
        """Queue a batch, blocking the calling thread while `max_pending` batches are under way.

        Raises:
            InferenceClosedError: the worker is closed.
        """
        self._slots.take().result()
        return self._enqueue(batch, horizon, num_paths, self.forecaster)

    async def forecast(
        self, batch: ContextBatch, horizon: int, num_paths: int, forecaster: Forecaster | None = None
    ) -> ForecastBatch:
        """Queue a batch and await its forecast; the loop runs on while there is no place.

        A caller that is cancelled loses its answer; the worker goes on with the next batch.

        Args:
            forecaster: another one than the worker's own, for this batch.
        """
        place = self._slots.take()
        if not place.done():  # else at once: the loop's next turn may be long in coming
            try:
                await asyncio.wrap_future(place)
            except asyncio.CancelledError:
                place.add_done_callback(self._slots.give_back)  # not asked here: it may be on its way
                raise
        chosen = self.forecaster if forecaster is None else forecaster
        return await asyncio.wrap_future(self._enqueue(batch, horizon, num_paths, chosen))

    def close(self) -> None:
        """Finish the batch that runs, fail those that wait with InferenceClosedError, end the thread. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._slots.fail(InferenceClosedError("the inference worker is closed"))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _enqueue(
        self, batch: ContextBatch, horizon: int, num_paths: int, forecaster: Forecaster
    ) -> Future[ForecastBatch]:
        answer: Future[ForecastBatch] = Future()
        with self._lock:
            if not self._closed:
                self._jobs.put(_Job(batch, horizon, num_paths, forecaster, answer))
                return answer
        self._slots.give()
        raise InferenceClosedError("the inference worker is closed")

    def _work(self) -> None:
        torch.set_num_threads(self._num_threads)  # OpenMP keeps this per thread
        while (job := self._jobs.get()) is not None:
            if self._closed:
                _fail(job, InferenceClosedError("the inference worker is closed"))
            elif job.answer.set_running_or_notify_cancel():
                self._run(job)
            self._slots.give()

    def _run(self, job: _Job) -> None:
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                result = job.forecaster.forecast(job.batch, job.horizon, job.num_paths)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who asked
            job.answer.set_exception(error)
            return
        if self._on_inference_seconds is not None:
            self._on_inference_seconds(time.perf_counter() - started)
        job.answer.set_result(result)


def _fail(job: _Job, error: Exception) -> None:
    if job.answer.set_running_or_notify_cancel():
        job.answer.set_exception(error)
