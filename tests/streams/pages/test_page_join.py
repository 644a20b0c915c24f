"""The join of two page chains: exactly the slots both sources closed, in order, whatever the interleaving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.catalogue import Source
from streams.log import ContractBroken
from streams.pages.chain import PageJoin
from streams.pages.page import Page

WAITING_ROWS = 3  # pages without workloads count as one row each


def page(source: Source, slot: int, prev: int | None) -> Page:
    return Page(
        source=source,
        partition=0,
        slot=slot,
        prev=prev,
        prev_digest=None if prev is None else digest(source, prev),
        end_offset=slot,
        end_stamp_ms=slot * 1000,
        resume_offset=slot,
        step_ms=1000,
        grace_ms=0,
        indicators=("request.arrival_rate",),
        workloads=(),
        values=np.zeros((0, 1), np.float32),
        observed=np.zeros((0, 1), np.bool_),
        facts=(),
    )


def digest(source: str, slot: int) -> str:
    return f"{source}-{slot}"


def offer(join: PageJoin, source: Source, slot: int, prev: int | None, offset: int) -> Page | None:
    return join.offer(page(source, slot, prev), digest(source, slot), offset)


@given(
    first=st.integers(5, 9),
    gpu_first=st.integers(5, 12),
    length=st.integers(1, 12),
    data=st.data(),
)
def test_every_slot_closed_by_both_is_joined_once_and_in_order(
    first: int, gpu_first: int, length: int, data: st.DataObject
) -> None:
    chains: dict[Source, list[int]] = {
        "requests": list(range(first, first + length)),
        "gpu": list(range(gpu_first, first + length)),
    }
    order = data.draw(st.permutations([s for s, chain in chains.items() for _ in chain]))
    join, joined, stragglers = PageJoin(WAITING_ROWS), [], []
    taken: dict[Source, int] = {"requests": 0, "gpu": 0}
    for offset, source in enumerate(order):
        at = taken[source]
        taken[source] += 1
        chain = chains[source]
        late = offer(join, source, chain[at], chain[at - 1] if at else None, offset)
        if late is not None:
            stragglers.append((late.source, late.slot))
        joined += list(join.ready())
    slots = [j.slot for j in joined]
    assert slots == sorted(set(slots))
    # Plans and decisions show it: the bytes may not tell which source was read first.
    assert all(list(j.pages) == sorted(j.pages) for j in joined)
    seen = {(source, j.slot) for j in joined for source in j.pages} | set(stragglers)
    if gpu_first < first + length:  # both chains end at the same slot: nothing may be left waiting
        assert seen == {(source, slot) for source, chain in chains.items() for slot in chain}
        assert join.first_pending_offset() is None


def test_a_source_without_any_page_is_awaited_for_a_while_and_then_absent() -> None:
    join = PageJoin(WAITING_ROWS)
    for offset, slot in enumerate((7, 8)):
        offer(join, "requests", slot, slot - 1 if slot > 7 else None, offset)
        assert list(join.ready()) == []
    offer(join, "requests", 9, 8, 2)
    assert [(j.slot, sorted(j.pages)) for j in join.ready()] == [(s, ["requests"]) for s in (7, 8, 9)]
    assert offer(join, "gpu", 9, None, 3) is not None  # a straggler: stored, not decided on again
    offer(join, "requests", 10, 9, 4)
    assert list(join.ready()) == []  # from its first page on, both must close a slot
    assert join.first_pending_offset() == 4
    offer(join, "gpu", 10, 9, 5)
    assert [(j.slot, sorted(j.pages)) for j in join.ready()] == [(10, ["gpu", "requests"])]


@given(first=st.integers(5, 9), gpu_first=st.integers(5, 12), length=st.integers(4, 12), data=st.data())
def test_the_first_slots_do_not_depend_on_whose_pages_were_written_first(
    first: int, gpu_first: int, length: int, data: st.DataObject
) -> None:
    chains: dict[Source, list[int]] = {
        "requests": list(range(first, first + length)),
        "gpu": list(range(gpu_first, gpu_first + length)),
    }
    order = data.draw(st.permutations([s for s, chain in chains.items() for _ in chain]))
    join, joined = PageJoin(), []
    taken: dict[Source, int] = {"requests": 0, "gpu": 0}
    for offset, source in enumerate(order):
        at, chain = taken[source], chains[source]
        taken[source] += 1
        assert offer(join, source, chain[at], chain[at - 1] if at else None, offset) is None  # there are no stragglers
        joined += [(j.slot, sorted(j.pages)) for j in join.ready()]
    # The rule, as the documents give it: every slot that both have passed, with the pages that there are of it.
    newest = min(max(chain) for chain in chains.values())
    slots = sorted({slot for chain in chains.values() for slot in chain if slot <= newest})
    assert joined == [(slot, sorted(s for s, chain in chains.items() if slot in chain)) for slot in slots]


def test_a_fleet_of_one_source_waits_for_no_other() -> None:
    join = PageJoin(sources=("requests",))
    offer(join, "requests", 7, None, 0)
    assert [j.slot for j in join.ready()] == [7]


def test_identical_pages_of_a_second_writer_change_nothing() -> None:
    join = PageJoin(WAITING_ROWS)
    offer(join, "requests", 7, None, 0)
    offer(join, "gpu", 7, None, 1)
    assert len(list(join.ready())) == 1
    assert offer(join, "requests", 7, None, 2) is None
    assert list(join.ready()) == []


def test_a_torn_chain_is_seen() -> None:
    join = PageJoin(WAITING_ROWS)
    offer(join, "requests", 7, None, 0)
    with pytest.raises(ContractBroken, match=r"torn.*state reset"):
        offer(join, "requests", 9, 8, 1)


def test_after_restore_answered_slots_are_stragglers() -> None:
    join = PageJoin(WAITING_ROWS)
    join.restore(7)
    assert offer(join, "requests", 7, 6, 0) is not None
    assert offer(join, "gpu", 7, 6, 1) is not None
    offer(join, "requests", 8, 7, 2)
    offer(join, "gpu", 8, 7, 3)
    assert [j.slot for j in join.ready()] == [8]


def test_reading_back_may_begin_with_a_page_written_again_by_a_paused_worker() -> None:
    """Slot 3 again, after 11: its successor 4 is out of reach, and 12 is not it."""
    join = PageJoin(WAITING_ROWS)
    join.restore(12, oldest=10)
    assert offer(join, "gpu", 3, 2, 40) is None
    assert offer(join, "gpu", 12, 11, 41) is not None
    assert offer(join, "gpu", 13, 12, 42) is None
    with pytest.raises(ContractBroken, match="torn"):
        offer(join, "gpu", 15, 14, 43)
