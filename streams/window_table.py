"""The window table: per workload the last L slots of every indicator, and a week of 10-minute means of demand.

It has a table's face (`table[workload]`, iteration, `len`), but no changelog of its own: pages are its changelog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.catalogue import Indicator
from streams.pages import Page, WorkloadFacts

COARSE_ROWS = 1008
COARSE_STEP_MS = 600_000


@dataclass(frozen=True, slots=True)
class Window:
    """One workload's view at the newest slot.

    Attributes:
        columns: indicator name -> column.
        values: float32 [L, N], oldest slot first, 0 where not observed.
        observed: bool [L, N].
        coarse: float32 [1008, C]; coarse_observed: bool [1008, C]; oldest first.
        facts: newest facts per slot that had any, oldest first, as (slot, source, facts).
    """

    workload: str
    columns: Mapping[str, int]
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]
    coarse: NDArray[np.float32]
    coarse_observed: NDArray[np.bool_]
    facts: tuple[tuple[int, str, WorkloadFacts], ...]

    def newest(self, indicator: str) -> float | None:
        """Value of an indicator in the newest slot; None when not observed or not in the catalogue."""
        n = self.columns.get(indicator)
        return float(self.values[-1, n]) if n is not None and self.observed[-1, n] else None


class WindowTable:
    """Fine and coarse rings of one pages partition, filled from joined pages in slot order."""

    def __init__(self, catalogue: Sequence[Indicator], context_steps: int, step_ms: int, capacity: int = 64) -> None:
        self.catalogue = tuple(catalogue)
        self.context_steps = context_steps
        self.step_ms = step_ms
        self.newest: int | None = None
        self._column = {indicator.name: n for n, indicator in enumerate(self.catalogue)}
        self._coarse_names = tuple(i.name for i in self.catalogue if i.level == 1)
        self.num_coarse = len(self._coarse_names)
        self._row: dict[str, int] = {}
        self._free: list[int] = []
        self._last_seen: dict[str, int] = {}
        self._facts: dict[str, list[tuple[int, str, WorkloadFacts]]] = {}
        shape = (capacity, context_steps, len(self.catalogue))
        self._values = np.zeros(shape, np.float32)
        self._observed = np.zeros(shape, np.bool_)
        self._coarse = np.zeros((capacity, COARSE_ROWS, self.num_coarse), np.float32)
        self._coarse_observed = np.zeros((capacity, COARSE_ROWS, self.num_coarse), np.bool_)
        self.coarse_newest: int | None = None
        self._running_sum: dict[str, NDArray[np.float64]] = {}
        self._running_count: dict[str, NDArray[np.int64]] = {}

    # A table's face.

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._row))

    def __contains__(self, workload: str) -> bool:
        return workload in self._row

    def __getitem__(self, workload: str) -> Window:
        row = self._row[workload]
        newest = self._require_newest()
        order = np.arange(newest - self.context_steps + 1, newest + 1) % self.context_steps
        coarse_order = (np.arange(COARSE_ROWS) + (self.coarse_newest or 0) + 1) % COARSE_ROWS
        return Window(
            workload=workload,
            columns=self._column,
            values=self._values[row, order],
            observed=self._observed[row, order],
            coarse=self._coarse[row, coarse_order],
            coarse_observed=self._coarse_observed[row, coarse_order],
            facts=tuple(self._facts[workload]),
        )

    def last_seen(self, workload: str) -> int:
        """Newest slot in which the workload had a sample or a fact."""
        return self._last_seen[workload]

    def newest_values(self, indicator: str) -> dict[str, float]:
        """Of every workload whose indicator is observed in the newest slot, its value there."""
        n, at = self._column[indicator], self._require_newest() % self.context_steps
        return {w: float(self._values[row, at, n]) for w, row in self._row.items() if self._observed[row, at, n]}

    # Filling.

    def advance(self, slot: int) -> None:
        """Make `slot` the newest; what falls out of the last L slots is forgotten."""
        first = slot if self.newest is None else self.newest + 1
        for s in range(max(first, slot - self.context_steps + 1), slot + 1):
            self._values[:, s % self.context_steps] = 0
            self._observed[:, s % self.context_steps] = False
        self.newest = slot
        for facts in self._facts.values():
            while facts and facts[0][0] <= slot - self.context_steps:
                facts.pop(0)

    def write(self, page: Page) -> None:
        """Store a page whose slot lies within the last L slots; indicators are matched by name."""
        newest = self._require_newest()
        if not newest - self.context_steps < page.slot <= newest:
            return
        known = [(k, self._column[name]) for k, name in enumerate(page.indicators) if name in self._column]
        if page.workloads:
            rows = np.array([self._row_of(w) for w in page.workloads], np.int64)
            if known:
                from_columns, to_columns = map(list, zip(*known, strict=True))
                at = page.slot % self.context_steps
                self._values[rows[:, None], at, to_columns] = page.values[:, from_columns]
                self._observed[rows[:, None], at, to_columns] = page.observed[:, from_columns]
        for workload, facts in zip(page.workloads, page.facts, strict=True):
            self._last_seen[workload] = max(page.slot, self._last_seen.get(workload, page.slot))
            entries = self._facts[workload]
            entries.append((page.slot, page.source, facts))
            entries.sort(key=lambda e: (e[0], e[1]))

    def unseen(self) -> list[str]:
        """Workloads without a sample or fact in the last L slots, sorted."""
        newest = self._require_newest()
        return sorted(w for w, seen in self._last_seen.items() if seen <= newest - self.context_steps)

    def remove(self, workload: str) -> None:
        """Forget a workload and free its row."""
        row = self._row.pop(workload)
        for array in (self._values, self._observed, self._coarse, self._coarse_observed):
            array[row] = 0
        for by_workload in (self._last_seen, self._facts, self._running_sum, self._running_count):
            by_workload.pop(workload, None)
        self._free.append(row)

    def _row_of(self, workload: str) -> int:
        row = self._row.get(workload)
        if row is None:
            row = self._free.pop() if self._free else len(self._row)
            if row >= len(self._values):
                self._grow()
            self._row[workload] = row
            self._facts[workload] = []
        return row

    def _grow(self) -> None:
        def doubled(array: NDArray[np.generic]) -> NDArray[np.generic]:
            return np.concatenate([array, np.zeros_like(array)])

        self._values = doubled(self._values)  # type: ignore[assignment]
        self._observed = doubled(self._observed)  # type: ignore[assignment]
        self._coarse = doubled(self._coarse)  # type: ignore[assignment]
        self._coarse_observed = doubled(self._coarse_observed)  # type: ignore[assignment]

    def _require_newest(self) -> int:
        if self.newest is None:
            raise LookupError("the window table has no slot yet")
        return self.newest

    # The coarse ring.

    def accumulate_coarse(self) -> CoarseRow | None:
        """Add the newest slot to its running ten minutes; returns the row that this slot completes, if it does.

        A slot belongs to the ten minutes in which it ends.
        """
        slot = self._require_newest()
        at = slot % self.context_steps
        for workload, row in self._row.items():
            total = self._running_sum.setdefault(workload, np.zeros(self.num_coarse))
            count = self._running_count.setdefault(workload, np.zeros(self.num_coarse, np.int64))
            seen = self._observed[row, at, : self.num_coarse]
            total[seen] += self._values[row, at, : self.num_coarse][seen]
            count[seen] += 1
        end_ms = (slot + 1) * self.step_ms
        if end_ms // COARSE_STEP_MS == (end_ms - self.step_ms) // COARSE_STEP_MS:
            return None
        index = end_ms // COARSE_STEP_MS - 1
        names = [w for w in sorted(self._running_sum) if self._running_count[w].any()]
        counts = np.array([self._running_count[w] for w in names]).reshape(-1, self.num_coarse)
        sums = np.array([self._running_sum[w] for w in names]).reshape(-1, self.num_coarse)
        means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
        self._running_sum.clear()
        self._running_count.clear()
        row_out = CoarseRow(index, tuple(names), self._coarse_names, means.astype(np.float32), counts > 0)
        self.write_coarse(row_out)
        return row_out

    def write_coarse(self, row: CoarseRow) -> None:
        """Store ten minutes of means; rows arrive in ascending order of index, gaps are unobserved.

        Indicators are matched by name; those that the row does not hold stay unobserved.
        """
        first = row.index if self.coarse_newest is None else self.coarse_newest + 1
        for index in range(max(first, row.index - COARSE_ROWS + 1), row.index + 1):
            self._coarse[:, index % COARSE_ROWS] = 0
            self._coarse_observed[:, index % COARSE_ROWS] = False
        self.coarse_newest = row.index if self.coarse_newest is None else max(row.index, self.coarse_newest)
        held = {name: n for n, name in enumerate(row.indicators)}
        columns = [(to, held[name]) for to, name in enumerate(self._coarse_names) if name in held]
        for k, workload in enumerate(row.workloads):
            if workload in self._row:
                at = self._row[workload], row.index % COARSE_ROWS
                for to, column in columns:
                    self._coarse[at][to] = row.values[k, column]
                    self._coarse_observed[at][to] = row.observed[k, column]

    def running_coarse(self) -> RunningCoarse:
        """The running ten minutes, for the commit record."""
        sums = {w: (s.tolist(), self._running_count[w].tolist()) for w, s in sorted(self._running_sum.items())}
        return RunningCoarse(self._coarse_names, sums)

    def restore_running_coarse(self, running: RunningCoarse) -> None:
        """Take the running ten minutes from a commit record; indicators are matched by name."""
        columns = [
            running.indicators.index(name) if name in running.indicators else None for name in self._coarse_names
        ]

        def matched(numbers: Sequence[float]) -> list[float]:
            return [0 if column is None else numbers[column] for column in columns]

        self._running_sum = {w: np.array(matched(total), np.float64) for w, (total, _) in running.sums.items()}
        self._running_count = {w: np.array(matched(count), np.int64) for w, (_, count) in running.sums.items()}


class RunningCoarse(msgspec.Struct, frozen=True):
    """The running ten minutes: per workload sums and counts of the level-1 indicators named."""

    indicators: tuple[str, ...] = ()
    sums: dict[str, tuple[list[float], list[int]]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class CoarseRow:
    """Ten minutes `[index*600 s, (index+1)*600 s)`: means of the level-1 indicators, float32 [k, C], and their mask."""

    index: int
    workloads: tuple[str, ...]
    indicators: tuple[str, ...]
    values: NDArray[np.float32]
    observed: NDArray[np.bool_]

    def keep(self, wanted: Sequence[str]) -> CoarseRow:
        """The same ten minutes with only some of the workloads."""
        chosen = frozenset(wanted)
        rows = [k for k, workload in enumerate(self.workloads) if workload in chosen]
        names = tuple(self.workloads[k] for k in rows)
        return CoarseRow(self.index, names, self.indicators, self.values[rows], self.observed[rows])
