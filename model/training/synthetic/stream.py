"""An endless, ordered stream of synthetic batches with their features, computed ahead in other processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import TypeVar

import torch

from model.network.spec import NetworkSpec
from model.training.examples import FeatureBatch
from model.training.loop import prepare
from model.training.synthetic.windows import draw_example

TOKENS = 192
_PREFETCH_BATCHES = 12
T = TypeVar("T")
_VALIDATION = 1_000_000_000  # seeds from here on are never trained on


def synthetic_batch(seed: int, spec: NetworkSpec, loads: float = 0.0) -> FeatureBatch:
    """One batch with its features."""
    return prepare(draw_example(seed, TOKENS, loads), spec)


def synthetic_stream(
    spec: NetworkSpec, start: int, seed: int, workers: int, loads: float = 0.0
) -> Iterator[FeatureBatch]:
    """Batches from `start` on; the order does not depend on the number of workers (0 = in this process).

    Args:
        loads: share of the batches that are of request loads.
    """
    return ordered(partial(synthetic_batch, spec=spec, loads=loads), seed * 10_000_000 + start, workers)


def synthetic_validation(spec: NetworkSpec, count: int = 12, loads: float = 0.0) -> list[FeatureBatch]:
    """The batches by which synthetic training is judged."""
    return [synthetic_batch(_VALIDATION + k, spec, loads) for k in range(count)]


def ordered(make: Callable[[int], T], start: int, workers: int) -> Iterator[T]:
    """make(start), make(start + 1), ..., computed ahead by `workers` processes and handed out in order."""
    number = start
    if workers == 0:
        while True:
            yield make(number)
            number += 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        waiting: deque[Future[T]] = deque()
        while True:
            while len(waiting) < _PREFETCH_BATCHES:
                waiting.append(pool.submit(make, number))
                number += 1
            yield waiting.popleft().result()


def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
