"""Numbers for (workload, source) pairs, so that samples can be folded as columns. Names are checked only here."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from streams.records.limits import LabelCheck
from streams.records.samples import Ints
from streams.records.strict_json import MalformedError

_FIRST_CAPACITY = 1024
# Unused names are dropped when the index holds this many more than twice the names in use.
_SLACK_NAMES = 65_536
# Namespaces are counted by a hash of their name. Two that share one share its part of the limit.
NUM_NAMESPACES = 1_024
DECLARED = -1


class Publisher:
    """A workload as its records name it: Kafka key, number, and number of series."""

    __slots__ = ("key", "name", "num_series", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.key = name.encode()
        self.number = number
        self.num_series = 0


class SeriesIndex:
    """Series numbers of one partition. They are private to a process: nothing published depends on them.

    Args:
        declared: workloads that the settings declare.

    Attributes:
        publishers: by workload.
        by_record: (Kafka key, workload, source) -> series; a record with one of these keys has valid names.
        workload_of: [capacity] workload number of each series.
        namespace_of: [names or more] `namespace` of each workload number.
        colons_of: [capacity] colons in the labels of each series.
        most_sources: no workload has more series than this.
    """

    def __init__(self, declared: Collection[str] = ()) -> None:
        self._declared = frozenset(declared)
        self.publishers: dict[str, Publisher] = {}
        self.by_record: dict[tuple[bytes | None, str, str], int] = {}
        self.workload_of: Ints = np.zeros(_FIRST_CAPACITY, np.int64)
        self.colons_of: Ints = np.zeros(_FIRST_CAPACITY, np.int64)
        self.namespace_of: Ints = np.zeros(_FIRST_CAPACITY, np.int64)
        self.most_sources = 0
        self._sources: list[str] = []
        self._names: list[str] = []
        self._free: list[int] = []
        self._free_names: list[int] = []
        self._ranks: Ints | None = None
        self._name_ranks: Ints | None = None
        self._check_label = LabelCheck()
        self._sweep_at = _SLACK_NAMES
        self._sweep_names_at = 0

    @property
    def num_series(self) -> int:
        """Series known now."""
        return len(self.by_record)

    @property
    def num_workloads(self) -> int:
        """Workloads known now."""
        return len(self.publishers)

    @property
    def num_names(self) -> int:
        """Every workload number is below this."""
        return len(self._names)

    @property
    def capacity(self) -> int:
        """Every series number is below this."""
        return len(self.workload_of)

    def name_of(self, workload: int) -> str:
        """Workload by its number."""
        return self._names[workload]

    def source_of(self, series: int) -> str:
        """Source by its series number."""
        return self._sources[series]

    def sources_of(self, series: Ints) -> list[str]:
        """Sources by their series numbers [m]."""
        return list(map(self._sources.__getitem__, series.tolist()))

    def numbers_of(self, workloads: Sequence[str]) -> Ints:
        """[k] workload numbers; new ones for names seen first."""
        publishers = self.publishers
        return np.array(
            [publishers[name].number if name in publishers else self.publisher(name).number for name in workloads], int
        )

    def namespace(self, workload: str) -> int:
        """`DECLARED` for a declared workload, else the number of its namespace: its name up to the last slash."""
        if workload in self._declared:
            return DECLARED
        return zlib.crc32(workload.rpartition("/")[0].encode()) % NUM_NAMESPACES

    def publisher(self, workload: str) -> Publisher:
        """The workload's entry; a new one for a name seen first."""
        publisher = self.publishers.get(workload)
        if publisher is None:
            if self._free_names:
                number = self._free_names.pop()
                self._names[number] = workload
            else:
                number = len(self._names)
                self._names.append(workload)
                if number >= len(self.namespace_of):
                    self.namespace_of = np.concatenate((self.namespace_of, np.zeros(number, np.int64)))
            self.namespace_of[number] = self.namespace(workload)
            publisher = self.publishers[workload] = Publisher(workload, number)
            self._name_ranks = None
        return publisher

    def series(self, workload: str, source: str) -> int:
        """Number of a series; names that were checked elsewhere."""
        publisher = self.publisher(workload)
        number = self.by_record.get((publisher.key, publisher.name, source))
        return self._new(publisher, source) if number is None else number

    def proper(self, key: bytes | None, workload: str, source: str) -> bool:
        """Whether the names of a record are valid and its key is the workload."""
        try:
            self._check_label("workload", workload)
            self._check_label("source", source)
        except MalformedError:
            return False
        return key == workload.encode()

    def checked(self, key: bytes | None, workload: str, source: str) -> int:
        """Number of the series of a record; -1 when its names or its key are not valid."""
        if not self.proper(key, workload, source):
            return -1
        return self.series(workload, source)

    def _new(self, publisher: Publisher, source: str) -> int:
        if self._free:
            number = self._free.pop()
            self._sources[number] = source
        else:
            number = len(self._sources)
            self._sources.append(source)
            if number >= self.capacity:
                self.workload_of = np.concatenate((self.workload_of, np.zeros(self.capacity, np.int64)))
                self.colons_of = np.concatenate((self.colons_of, np.zeros(len(self.colons_of), np.int64)))
        self.by_record[publisher.key, publisher.name, source] = number  # shared strings save memory
        publisher.num_series += 1
        self.workload_of[number] = publisher.number
        self.colons_of[number] = publisher.name.count(":") + source.count(":")
        self.most_sources = max(self.most_sources, publisher.num_series)
        self._ranks = None
        return number

    def ranks(self) -> Ints:
        """[capacity] place of each series when they are ordered by workload, then by source."""
        if self._ranks is None or len(self._ranks) < self.capacity:
            pairs = sorted((name, source, number) for (_, name, source), number in self.by_record.items())
            self._ranks = np.zeros(self.capacity, np.int64)
            self._ranks[[n for _, _, n in pairs]] = np.arange(len(pairs))
        return self._ranks

    def name_ranks(self) -> Ints:
        """[names] place of each workload number when workloads are ordered by name."""
        if self._name_ranks is None:
            self._name_ranks = np.zeros(self.num_names, np.int64)
            numbers = [self.publishers[name].number for name in sorted(self.publishers)]
            self._name_ranks[numbers] = np.arange(len(numbers))
        return self._name_ranks

    def names_of(self, workloads: Ints) -> list[str]:
        """Workloads by their numbers [k]."""
        return list(map(self._names.__getitem__, workloads.tolist()))

    def crowded(self, most_workloads: int) -> bool:
        """Whether the index holds so many names that unused ones should be dropped."""
        return self.num_series >= self._sweep_at or self.num_workloads > max(most_workloads, self._sweep_names_at)

    def sweep(self, living: Iterable[Ints], workloads: Iterable[str]) -> Ints:
        """Drop the series that are in none of the arrays `living`.

        Args:
            workloads: names that stay although they have no series.

        Returns:
            The series numbers that are free again.
        """
        alive = np.zeros(self.capacity, np.bool_)
        for numbers in living:
            alive[numbers] = True
        staying_names = set(workloads)
        dead = [names for names, number in self.by_record.items() if not alive[number]]
        for _, workload, _ in dead:
            self.publishers[workload].num_series -= 1
        free_numbers = [self.by_record.pop(names) for names in dead]
        for publisher in list(self.publishers.values()):
            if not publisher.num_series and publisher.name not in staying_names:
                del self.publishers[publisher.name]
                self._free_names.append(publisher.number)
        self._free += free_numbers
        self.most_sources = max((p.num_series for p in self.publishers.values()), default=0)
        self._sweep_at = _SLACK_NAMES + 2 * self.num_series
        self._sweep_names_at = 2 * self.num_workloads
        self._ranks = self._name_ranks = None
        return np.array(free_numbers, np.int64)
