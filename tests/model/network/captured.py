"""What a CUDA graph forbids, checked where there is no GPU: tensors without data that say they lie on one.

A capture fails, or is silently wrong, where the host waits for a number, a shape follows from data, or something is
copied from the host's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKS = ("prim.device.default",)  # about a tensor, not for what is in it
_WAITS = ("aten.cholesky_solve.default",)  # batches of it may be MAGMA's, which waits for the device between kernels


class HostIsAskedError(AssertionError):
    """An operation read or wrote memory of the host."""


class _DeviceAlone(TorchDispatchMode):
    """Refuses every operation that touches a tensor of the host.

    Attributes:
        operations: that passed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if str(func) not in ASKS:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            if any(tensor.device.type == "cpu" for tensor in tensors):
                raise HostIsAskedError(f"{func} touches the host's memory")
            if str(func) in _WAITS:
                raise HostIsAskedError(f"{func} may wait on the host")
            self.operations += 1
        return out


@contextmanager
def _no_data() -> Iterator[FakeTensorMode]:
    with _without("triton"), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=False) as mode:
        yield mode


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Such tensors load a compiler of kernels that nothing here uses, and that complains when a process ends."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


def pretended(mode: FakeTensorMode) -> Callable[[Tensor], Tensor]:
    """A tensor's like on a GPU that is not there."""
    return lambda tensor: torch.empty_like(mode.from_tensor(tensor), device="cuda")


def operations_of(work: Callable[[Callable[[Tensor], Tensor]], Callable[[], object]]) -> int:
    """How many operations a capture would hold.

    Args:
        work: is given a way to pretend tensors, and gives what is to be captured.

    Raises:
        HostIsAskedError, DynamicOutputShapeException, DataDependentOutputException: it could not be.
    """
    with _no_data() as mode:
        captured, alone = work(pretended(mode)), _DeviceAlone()
        with alone:
            captured()
    return alone.operations


def pretend_network(network: nn.Module, pretend: Callable[[Tensor], Tensor]) -> None:
    """Put the weights on the device that is not there."""
    for module in network.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(pretend(weight), requires_grad=False)
