"""Python's cycle collector, kept away from what is made to stay, and from a slot's work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Of the objects that a slot makes next to none are cycles: by default, a few hundred at a time, they are looked through
# every few milliseconds, those of a thousand workloads for a twentieth of the CPU.
_NEW_OBJECTS: Final = 50_000


def collect_seldom() -> None:
    """Leave what there is for good, garbage included, and look through new objects by the ten thousands."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    gc.enable()


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
