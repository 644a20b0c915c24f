"""Python's cycle collector, kept away from what is made to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is looked through for garbage while the block runs.

    State that is read back is millions of objects, all of which stay: looked through each time that their number has
    grown by a quarter, they take a third of the time again. Where the collector is off already it stays so.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
