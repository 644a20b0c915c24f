"""So many at a time: what bounds the memory of a large fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """So many of them at a time, the last time perhaps fewer."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
