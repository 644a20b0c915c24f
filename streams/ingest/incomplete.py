"""Sources whose samples lack what their indicators need: a table for people, beside the pages.

| source of | needs |
|---|---|
| requests | a counter that the arrival rate is made of |
| gpu | the fields of any one indicator |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from streams.catalogue import ARRIVAL_RATE, Indicator
from streams.records.samples import Bools, Floats, Ints
from streams.records.series_index import SeriesIndex

# Slots in a row that a source must lack it in; a source may begin with a partial sample.
_SLOTS: Final = 3
# Slots after which a source without samples is dropped.
_KEPT_SLOTS: Final = 20
# Sources that are remembered, of a partition.
MAX_SOURCES: Final = 1_024
_MAX_NAMED: Final = 3


class IncompleteSources(NamedTuple):
    """The sources of one workload that lack something.

    Attributes:
        sources: a few of them, ascending.
        num_lacking, num_sources: how many lack it, of how many in the newest slot.
    """

    workload: str
    sources: tuple[str, ...]
    num_lacking: int
    num_sources: int


class SourceCheck:
    """Looks at the sources of closed slots; a restart begins with none.

    Args:
        indicators: of one source of telemetry.
        counters: names of the counters, as columns of their states.
        index: names the series.

    Attributes:
        needs: alternatives, each of fields that belong together; a source needs one of them.
    """

    def __init__(self, indicators: Sequence[Indicator], counters: Sequence[str], index: SeriesIndex) -> None:
        rate = next((i for i in indicators if i.name == ARRIVAL_RATE), None)
        plain = [i for i in indicators if i.rule in ("mean", "max", "ratio")] if rate is None else []
        alternatives = [(field,) for field in rate.fields] if rate is not None else [i.fields for i in plain]
        self.needs = tuple(dict.fromkeys(alternatives))
        self._columns = [counters.index(field) for field in rate.fields] if rate is not None else []
        self._index = index
        self._lacking: dict[int, tuple[int, int]] = {}  # series -> slots in a row, and the newest of them
        self._num_sources: dict[int, int] = {}

    def look(self, slot: int, series: Ints, values: Floats, observed: Bools) -> None:
        """Look at a closed slot.

        Args:
            series: [m] numbers of the sources with samples in it.
            values: [capacity, C] newest value of each counter of every series, NaN where none was ever observed.
            observed: [m, P] whether the slot has a value of each plain indicator.
        """
        counts = ~np.isnan(values[series[:, None], self._columns]) if self._columns else observed
        lacks = ~counts.any(axis=1)
        if not (self._lacking or lacks.any()):
            return
        for number in series[~lacks].tolist():
            self._lacking.pop(number, None)
        lacking = series[lacks]
        for number in lacking.tolist():
            slots, _ = self._lacking.get(number, (0, slot))
            if slots or len(self._lacking) < MAX_SOURCES:
                self._lacking[number] = slots + 1, slot
        self.forget([number for number, (_, newest) in self._lacking.items() if newest < slot - _KEPT_SLOTS])
        num_sources = np.bincount(self._index.workload_of[series])
        workloads = np.unique(self._index.workload_of[lacking]).tolist()
        self._num_sources |= {workload: int(num_sources[workload]) for workload in workloads}
        if len(self._num_sources) > MAX_SOURCES:
            self._num_sources = {workload: int(num_sources[workload]) for workload in workloads}

    def forget(self, series: Iterable[int]) -> None:
        """Drop series whose numbers are free, or whose sources are gone."""
        for number in series:
            self._lacking.pop(number, None)

    def found(self) -> list[IncompleteSources]:
        """The workloads with incomplete sources, ascending."""
        by_workload: defaultdict[int, list[str]] = defaultdict(list)
        for number, (slots, _) in self._lacking.items():
            if slots >= _SLOTS:
                by_workload[int(self._index.workload_of[number])].append(self._index.source_of(number))
        return sorted(
            IncompleteSources(
                self._index.name_of(workload),
                tuple(sorted(sources)[:_MAX_NAMED]),
                len(sources),
                max(len(sources), self._num_sources.get(workload, 0)),
            )
            for workload, sources in by_workload.items()
        )
