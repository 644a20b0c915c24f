"""What has become of records and samples: cumulative over all lives of a partition, each record counted once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from streams.ingest.slots import VERDICTS
from streams.pages.page import Counters
from streams.records.samples import Ints, SampleRun
from streams.records.sorter import Aside


class IngestCounts:
    """The counters of one chain.

    Attributes:
        base_offset: what an earlier life's last page covers: counted, its controls and dead letters handed on.
    """

    def __init__(self) -> None:
        self.base_offset = -1
        self._counts = dict.fromkeys(Counters.__struct_fields__, 0)

    def restore(self, counters: Counters, base_offset: int) -> None:
        """Go on where a page left off."""
        self.base_offset = base_offset
        self._counts = {name: getattr(counters, name) for name in self._counts}

    @property
    def counters(self) -> Counters:
        """Counts so far."""
        return Counters(**self._counts)

    def add(self, name: str, amount: int, offset: int) -> None:
        """Count something of the record at this offset."""
        if offset > self.base_offset:
            self._counts[name] += amount

    def add_asides(self, asides: Iterable[Aside]) -> None:
        """Count records that brought nothing."""
        for aside in asides:
            if aside.offset > self.base_offset:
                self._counts["records"] += 1
                if aside.outcome != "controls":
                    self._counts[aside.outcome] += 1
                if aside.outcome == "future":
                    self._counts["dead"] += 1

    def add_refused(self, amount: int) -> None:
        """Count samples that were refused when their slot closed, which happens once."""
        self._counts["refused"] += amount

    def first_new(self, run: SampleRun) -> int:
        """Number of the first record of a run that no earlier life has counted."""
        return int(np.searchsorted(run.offsets, self.base_offset, side="right"))

    def add_records(self, run: SampleRun, verdicts: Ints, first: int, end: int) -> None:
        """Count some records of a run, none of them counted before.

        Args:
            verdicts: [R, verdicts] how many samples of each record met which.
        """
        if end <= first:
            return
        self._counts["records"] += end - first
        for name, amount in zip(VERDICTS, verdicts[first:end].sum(axis=0).tolist(), strict=True):
            self._counts[name] += amount
        if run.unknown is not None:
            self._counts["unknown_names"] += int(run.unknown[first:end].sum())
