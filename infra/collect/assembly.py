"""Readings whose points come in pieces: held until the last piece must have come."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from infra.collect.mapping.choices import Group
from infra.collect.mapping.readings import GroupKey, Reader, Reading
from infra.collect.points import Point

# Beyond so many, the oldest readings go out as they are.
_MOST_OPEN = 200_000


class _Open(NamedTuple):
    group: Group
    since_s: float
    places: dict[Hashable, int]


class Assembler:
    """Puts readings together from points that arrive over some time, in any order.

    Args:
        hold_s: how long after its first piece a reading waits for more.
    """

    def __init__(self, reader: Reader, hold_s: float) -> None:
        self._reader = reader
        self._hold_s = hold_s
        # In the order in which they were opened.
        self._open: dict[GroupKey, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, point: Point, now_s: float, log: Hashable = None, offset: int = 0) -> None:
        """Take a piece.

        Args:
            log, offset: where it was read, for `first_offsets`.
        """
        for key in self._reader.place(point):
            opened = self._open.get(key)
            if opened is None:
                opened = self._open[key] = _Open(Group(), now_s, {})
            opened.group.add(point)
            if opened.places.get(log, offset) >= offset:
                opened.places[log] = offset

    def due(self, now_s: float) -> list[Reading]:
        """The readings that have waited long enough."""
        surplus = len(self._open) - _MOST_OPEN
        keys = []
        for n, (key, opened) in enumerate(self._open.items()):
            if n >= surplus and opened.since_s + self._hold_s > now_s:
                break
            keys.append(key)
        return self._take(keys)

    def everything(self) -> list[Reading]:
        """All readings, complete or not: for the end."""
        return self._take(list(self._open))

    def forget(self, log: Hashable) -> None:
        """Drop the readings that have pieces of this log."""
        self._open = {key: opened for key, opened in self._open.items() if log not in opened.places}

    def first_offsets(self) -> Mapping[Hashable, int]:
        """Per log, the first offset that a waiting reading needs; what lies before it may be forgotten."""
        first: dict[Hashable, int] = {}
        for opened in self._open.values():
            for log, offset in opened.places.items():
                if first.get(log, offset) >= offset:
                    first[log] = offset
        return first

    def _take(self, keys: list[GroupKey]) -> list[Reading]:
        return self._reader.put_together({key: self._open.pop(key).group for key in keys})
