"""What is remembered of sources and workloads between slots: a pure function of the last L pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streams.pages import HistogramState, SeriesState
from streams.records import Sample


class Roster:
    """Workloads by the newest closed slot that held them. Slots must be marked in ascending order."""

    def __init__(self) -> None:
        self._last_seen: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._last_seen)

    def __contains__(self, workload: object) -> bool:
        return workload in self._last_seen

    def mark(self, workload: str, slot: int) -> None:
        """Note that a closed slot holds the workload."""
        # Re-inserting keeps the dict ordered by slot, so that forgetting looks only at what it forgets.
        self._last_seen.pop(workload, None)
        self._last_seen[workload] = slot

    def forget(self, up_to_slot: int) -> None:
        """Drop the workloads not seen after this slot."""
        old = []
        for workload, slot in self._last_seen.items():
            if slot > up_to_slot:
                break
            old.append(workload)
        for workload in old:
            del self._last_seen[workload]


class SeriesTable:
    """Last counter values per (workload, source). Slots must be put in ascending order."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[int, SeriesState]]] = {}
        self._heard: dict[int, list[tuple[str, str]]] = {}

    def get(self, workload: str, source: str) -> SeriesState | None:
        """What the source said last, or None when it is new or was silent for L slots."""
        entry = self._of.get(workload, {}).get(source)
        return None if entry is None else entry[1]

    def put(self, slot: int, states: Iterable[SeriesState]) -> None:
        """Store the states that a closed slot ends with."""
        heard = self._heard.setdefault(slot, [])
        for state in states:
            self._of.setdefault(state.workload, {})[state.source] = (slot, state)
            heard.append((state.workload, state.source))

    def num_heard_since(self, workload: str, slot: int) -> int:
        """Sources of the workload heard in this slot or later."""
        return sum(heard >= slot for heard, _ in self._of.get(workload, {}).values())

    def forget(self, up_to_slot: int) -> None:
        """Drop the sources not heard after this slot."""
        old_slots = []
        for slot in self._heard:
            if slot > up_to_slot:
                break
            old_slots.append(slot)
        for slot in old_slots:
            for workload, source in self._heard.pop(slot):
                sources = self._of.get(workload, {})
                entry = sources.get(source)
                if entry is not None and entry[0] <= up_to_slot:
                    del sources[source]
                    if not sources:
                        del self._of[workload]


def next_state(
    workload: str,
    source: str,
    samples: Sequence[Sample],
    before: SeriesState | None,
    counters: Sequence[str],
    hists: Sequence[str],
) -> SeriesState:
    """State of a source after a slot: the newest value of each field, with its own time where a sample left it out.

    Args:
        samples: of the slot, by time, at least one.
        before: state as of the last slot in which the source was heard.
        counters, hists: names to remember.
    """
    ts_ms = samples[-1].ts_ms
    values: dict[str, float] = {}
    states: dict[str, HistogramState] = {}
    older: dict[str, int] = {}
    for name in counters:
        for sample in reversed(samples):
            value = sample.values.get(name)
            if value is not None:
                values[name] = value
                if sample.ts_ms != ts_ms:
                    older[name] = sample.ts_ms
                break
        else:
            if before is not None and name in before.counters:
                values[name] = before.counters[name]
                older[name] = instant_of(before, name)
    for name in hists:
        for sample in reversed(samples):
            if name in sample.hists:
                states[name] = sample.hists[name]
                if sample.ts_ms != ts_ms:
                    older[name] = sample.ts_ms
                break
        else:
            if before is not None and name in before.hists:
                states[name] = before.hists[name]
                older[name] = instant_of(before, name)
    return SeriesState(workload, source, ts_ms, values, states, older)


def instant_of(state: SeriesState, name: str) -> int:
    """Event time of a field's last value."""
    older: Mapping[str, int] = state.older_ts_ms
    return older.get(name, state.ts_ms)
