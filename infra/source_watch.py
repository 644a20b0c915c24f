"""Notices a telemetry source without a page or tick: the forecast stage waits for it, so decisions stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from streams.catalogue import SOURCES, Source

# (source, partition) -> newest closed slot; None before the first.
Closed = Mapping[tuple[Source, int], int | None]


@runtime_checkable
class ReadsPages(Protocol):
    """A kernel that closes slots of several sources: the forecast stage's, of which other workers know nothing."""

    def closed_slots(self) -> Mapping[Source, int]: ...


@runtime_checkable
class ReadsSource(Protocol):
    """A kernel that closes slots of one source: the ingest stage's, likewise."""

    def closed_slot(self) -> tuple[Source, int | None]: ...


class SourceWatch:
    """Remembers when each partition of each source last went on.

    Args:
        patience_s: a partition that has not closed a slot for so long is silent.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard: dict[tuple[Source, int], tuple[int | None, float]] = {}

    def silent(self, closed: Closed, now_s: float) -> dict[Source, list[int]]:
        """Silent partitions of each source that this worker sees; a partition new to it begins its patience now."""
        for key in self._heard.keys() - closed.keys():
            del self._heard[key]
        silent: dict[Source, list[int]] = {source: [] for source, _ in sorted(closed)}
        for key, slot in sorted(closed.items(), key=lambda item: item[0]):
            known = self._heard.get(key)
            if known is None or known[0] != slot:
                self._heard[key] = slot, now_s
            elif now_s - known[1] > self._patience_s:
                silent[key[0]].append(key[1])
        return silent


def closed_slots(kernels: Iterable[tuple[int, object]]) -> Closed:
    """Newest closed slot of every source partition that these (partition, kernel) pairs read, whichever knows more."""
    closed: dict[tuple[Source, int], int | None] = {}
    for partition, kernel in kernels:
        if isinstance(kernel, ReadsSource):
            slots: dict[Source, int | None] = dict([kernel.closed_slot()])
        elif isinstance(kernel, ReadsPages):
            known = kernel.closed_slots()
            slots = {source: known.get(source) for source in SOURCES}
        else:
            continue
        for source, slot in slots.items():
            before = closed.get((source, partition))
            closed[source, partition] = slot if before is None else max(before, slot if slot is not None else before)
    return closed
