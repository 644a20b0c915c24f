"""The fact ring against a plain list of everything the last L slots said; cells against values and masks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from streams.catalogue import Source
from streams.pages.page import WorkloadFacts
from streams.records.facts import BatchJob, BatchQueue, FleetFacts
from streams.windows.cells import full_observed, full_values, grow_rows, pack_full
from streams.windows.table import FactRing

STEP_MS = 1000
Entry = tuple[int, Source, WorkloadFacts]

_facts = st.builds(
    lambda samples, at, fleet, pending: (samples, at, fleet, pending),
    st.integers(0, 2),
    st.integers(0, STEP_MS - 1),
    st.booleans(),
    st.integers(0, 1),
)
# Per slot, what each source says; None = nothing. A straggler is a page of an earlier slot that comes late.
_slots = st.lists(
    st.tuples(st.one_of(st.none(), _facts), st.one_of(st.none(), _facts), st.integers(0, 3), st.integers(1, 3)),
    min_size=1,
    max_size=16,
)


def made(slot: int, told: tuple[int, int, bool, int]) -> WorkloadFacts:
    samples, at, has_fleet, pending = told
    ts_ms = slot * STEP_MS + at
    queues = tuple(
        BatchQueue(source, ts_ms, (BatchJob(ts_ms + at, float(at)),)) for source in ("a", "b")[: (at + slot) % 3]
    )
    fleet = FleetFacts(ts_ms, 3, pending, 0) if has_fleet else None
    return WorkloadFacts(samples, ts_ms, 1, 1, fleet=fleet, batch=queues)


@given(slots=_slots, context=st.integers(1, 5))
def test_the_ring_says_what_a_list_would_say(slots: list[tuple], context: int) -> None:  # type: ignore[type-arg]
    ring = FactRing(context, STEP_MS, 1)
    entries: list[Entry] = []
    slot = 50
    for gpu, requests, late, jump in slots:
        slot += jump
        ring.advance(slot, 2)
        if jump == 2:
            ring.grow(3)
        for source, told, of in (("gpu", gpu, slot), ("requests", requests, slot - late)):
            # A page of a slot comes once.
            known = any(s == of and n == source for s, n, _ in entries)
            if told is None or of <= slot - context or known:
                continue
            facts = made(of, told)
            ring.write(np.array([0]), of, source, [facts])  # type: ignore[arg-type]
            entries.append((of, source, facts))  # type: ignore[arg-type]
        check(ring, sorted((e for e in entries if e[0] > slot - context), key=lambda e: e[:2]), slot)
    ring.clear(0)
    check(ring, [], slot)


def check(ring: FactRing, entries: list[Entry], newest: int) -> None:
    read = ring.read(0)
    fleets = [f.fleet for _, _, f in entries if f.fleet is not None]
    assert read.fleet == max(fleets, key=lambda f: f.ts_ms, default=None)
    since = None
    for _, _, facts in reversed(entries):
        if facts.fleet is None:
            continue
        if facts.fleet.pending == 0:
            break
        since = facts.fleet.ts_ms
    assert read.pending_since_ms == since
    heard = {}
    for slot, source, facts in entries:
        if facts.num_samples:
            heard[source] = (slot, facts.newest_ts_ms)
    assert {source: (h.slot, h.ts_ms) for source, h in read.last_samples.items()} == heard
    queues = [queue for _, _, facts in entries for queue in facts.batch]
    newest_word = {name: max(q.ts_ms for q in queues if q.source == name) for name in {q.source for q in queues}}
    assert {queue.source: queue.ts_ms for queue in read.batch} == newest_word
    assert [queue.source for queue in read.batch] == sorted(newest_word)
    assert set(read.batch) <= set(queues)
    assert read.newest == {source: facts for slot, source, facts in entries if slot == newest}


@given(
    values=arrays(np.float32, (3, 4), elements=st.floats(-10, 10, width=32)),
    observed=arrays(np.bool_, (3, 4)),
    capacity=st.integers(3, 9),
)
def test_cells_give_values_and_mask_back(
    values: np.ndarray,
    observed: np.ndarray,
    capacity: int,  # type: ignore[type-arg]
) -> None:
    cells = grow_rows(pack_full(values, observed), capacity)
    np.testing.assert_array_equal(full_observed(cells[:3]), observed)
    np.testing.assert_array_equal(full_values(cells[:3]), np.where(observed, values, 0))
    assert not full_observed(cells[3:]).any()


@pytest.mark.parametrize("step_ms", [1_000, 65_536, 65_537, 3_600_000])
def test_the_last_millisecond_of_a_slot_is_kept_however_long_it_is(step_ms: int) -> None:
    ring = FactRing(4, step_ms, 1)
    ring.advance(7, 1)
    ts_ms = 8 * step_ms - 1
    facts = WorkloadFacts(1, ts_ms, 1, 1, fleet=FleetFacts(ts_ms, ready=2, pending=1, draining=0))
    ring.write(np.array([0]), 7, "requests", (facts,))
    assert ring.read(0).pending_since_ms == ts_ms
