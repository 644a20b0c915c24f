"""What the workers have folded, slot by slot, from the topic `pages` to a table.

These are the very values that forecasts are made of: rates of counters, masked where nothing was observed. They reach
back as far as that topic is kept.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from infra.console.errors import HarmonyError
from infra.kafka.tail import TailRecord
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.log import ContractBroken, LogRecord
from streams.pages.codec import PageAssembler
from streams.pages.page import Page

_COLUMN = {indicator.name: column for column, indicator in enumerate(DEFAULT_CATALOGUE)}
NAMES = tuple(_COLUMN)


@dataclass(frozen=True, slots=True)
class WorkloadHistory:
    """One workload's closed slots.

    Attributes:
        slots: int64 [T], ascending; slots without a page are absent.
        values: float32 [T, N], columns as `NAMES`, NaN where nothing was observed.
    """

    workload: str
    slots: NDArray[np.int64]
    values: NDArray[np.float32]


class PageHistory:
    """Collects workloads' slots from chunk records of the pages topic.

    Args:
        stream, num_partitions: what the pages must agree on.
        selection: workloads to keep; none = all.
        topic: its full name, for what errors say.
    """

    def __init__(self, stream: StreamConfig, num_partitions: int, selection: Iterable[str] = (), topic: str = "pages"):
        self._stream, self._num_partitions, self._topic = stream, num_partitions, topic
        self._selection = frozenset(selection)
        self._assemblers: dict[int, PageAssembler] = {}
        self._page_ids: set[tuple[int, str, int]] = set()
        self._rows: dict[str, dict[int, NDArray[np.float32]]] = {}
        self.workloads: set[str] = set()

    def take(self, record: TailRecord) -> None:
        """Take one record; those of a partition come in log order.

        Raises:
            HarmonyError: no page of these settings.
        """
        partition = record.partition
        if partition not in self._assemblers:
            self._assemblers[partition] = PageAssembler(
                self._stream, self._num_partitions, DEFAULT_CATALOGUE, f"{self._topic}, partition {partition}"
            )
        try:
            pages = self._assemblers[partition].feed(
                LogRecord(record.offset, record.stamp_ms, record.key, record.value)
            )
        except ContractBroken as error:
            raise HarmonyError(f"{error}.") from None
        for stored in pages:
            self._keep(stored.page)

    def histories(self, since_s: float | None = None) -> Iterator[WorkloadHistory]:
        """Workloads by name; with `since_s` only the slots so long before the newest one of all."""
        newest = max((max(rows) for rows in self._rows.values()), default=0)
        first = 0 if since_s is None else newest + 1 - round(since_s * 1000 / self._stream.step_ms)
        for workload in sorted(self._rows):
            slots = sorted(slot for slot in self._rows[workload] if slot >= first)
            if slots:
                values = np.stack([self._rows[workload][slot] for slot in slots])
                yield WorkloadHistory(workload, np.array(slots, dtype=np.int64), values)

    def _keep(self, page: Page) -> None:
        identity = (page.partition, page.source, page.slot)
        if identity in self._page_ids:  # two writers may both have closed a slot: whoever reads takes the first
            return
        self._page_ids.add(identity)
        self.workloads.update(page.workloads)
        columns = [_COLUMN[name] for name in page.indicators]
        for k, workload in enumerate(page.workloads):
            if self._selection and workload not in self._selection:
                continue
            rows = self._rows.setdefault(workload, {})
            row = rows.get(page.slot)
            if row is None:
                row = rows[page.slot] = np.full(len(NAMES), np.nan, dtype=np.float32)
            row[columns] = np.where(page.observed[k], page.values[k], np.nan)


def write_csv(out: TextIO, histories: Iterable[WorkloadHistory], step_ms: int) -> tuple[int, tuple[str, ...]]:
    """Write `item_id,timestamp` (start of the slot, UTC) and a column for every indicator that anyone has.

    Returns:
        Rows written, and the indicators.
    """
    all_histories = list(histories)
    has = np.zeros(len(NAMES), dtype=bool)
    for history in all_histories:
        has |= np.isfinite(history.values).any(axis=0)
    columns = np.flatnonzero(has)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("item_id", "timestamp", *(NAMES[c] for c in columns)))
    for history in all_histories:
        for slot, row in zip(history.slots.tolist(), history.values[:, columns], strict=True):
            moment = datetime.fromtimestamp(slot * step_ms / 1000, UTC).isoformat(sep=" ")
            writer.writerow((history.workload, moment, *("" if np.isnan(v) else str(v) for v in row)))
    return sum(len(history.slots) for history in all_histories), tuple(NAMES[c] for c in columns)
