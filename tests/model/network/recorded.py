"""A CUDA graph of the CPU: operations are recorded as they run, and replayed on the memory that they ran on.

What holds of a CUDA graph holds here: a replay runs the same operations on the same memory, whatever Python did between
them at the first time. A number that the host looked at stays what it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.model.network.captured import ASKS


class RecordedGraph:
    """In the place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.replays = 0

    def replay(self) -> None:
        """Do again what was recorded."""
        self.replays += 1
        for step in self.steps:
            step()


class _Recording(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if str(func) in ASKS:
            return out
        given = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]

        def again() -> None:
            anew = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for there, value in zip(made, anew, strict=True):
                if _memory(there) not in given:  # else it is a view, or was written in place
                    there.copy_(value)

        self._graph.steps.append(again)
        return out


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _recording(graph: RecordedGraph, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    with _Recording(graph):
        yield


class _Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.awaited: list[_Event] = []

    def wait_event(self, event: _Event) -> None:
        assert event.recorded, "an event that nobody records is never waited for"
        self.awaited.append(event)

    def synchronize(self) -> None:
        """All has run."""


class _Event:
    def __init__(self) -> None:
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded


def pretend_cuda(patch: pytest.MonkeyPatch) -> None:
    """Streams that run at once, events, and graphs that are recorded, under CUDA's names."""
    for name, stand_in in {
        "Stream": _Stream,
        "Event": _Event,
        "CUDAGraph": RecordedGraph,
        "graph": _recording,
        "stream": lambda _: nullcontext(),
        "graph_pool_handle": lambda: (0, 0),
    }.items():
        patch.setattr(torch.cuda, name, stand_in)
