"""Names in telemetry that are not known, as far as they are recent: a small table for people.

Readers ignore unknown names, because a later release may know them. A misspelt name looks the same, and what it should
have been is missing. So each name is kept with the known names that its record lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

# Limits of the table, because publishers choose names and workloads: the least recent ones are dropped.
MAX_KEYS: Final = 256
MAX_NAMES: Final = 16
MAX_NAME_CHARS: Final = 64
# Time after which a name that did not come again is no longer reported.
_KEPT_MS: Final = 600_000

Key = tuple[str, str]


class UnknownName(NamedTuple):
    """A name that is not known.

    Attributes:
        name: its first characters.
        source: newest source that sent it.
        absent: known names that the newest record with it lacks.
        stamp_ms: broker's stamp of that record.
    """

    name: str
    source: str
    absent: frozenset[str]
    stamp_ms: int


class UnknownNames:
    """The unknown names of each kind and workload of one partition; a restart begins with none.

    Attributes:
        newest_ms: broker's stamp of the newest record; the clock of the table.
    """

    def __init__(self) -> None:
        self.newest_ms = 0
        self._names: dict[Key, dict[str, UnknownName]] = {}

    def add(self, key: Key, source: str, names: Iterable[str], absent: frozenset[str]) -> None:
        """Take the unknown names of a record.

        Args:
            key: kind and workload.
            absent: known names that the record lacks.
        """
        own = self._names[key] = self._names.pop(key, {})
        for name in islice(names, MAX_NAMES):
            short = name[:MAX_NAME_CHARS]
            own.pop(short, None)
            own[short] = UnknownName(short, source, absent, self.newest_ms)
            if len(own) > MAX_NAMES:
                del own[next(iter(own))]
        if len(self._names) > MAX_KEYS:
            del self._names[next(iter(self._names))]

    def recent(self) -> dict[Key, tuple[UnknownName, ...]]:
        """The names that came lately, the newest of each key first."""
        since_ms = self.newest_ms - _KEPT_MS
        names = {
            key: tuple(name for name in reversed(own.values()) if name.stamp_ms >= since_ms)
            for key, own in self._names.items()
        }
        return {key: own for key, own in names.items() if own}
