"""Facts of a page as columns: the same as the records that they were packed from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.pages.facts_codec import PageFacts, pack_facts
from streams.pages.page import WorkloadFacts
from streams.records.facts import BatchJob, BatchQueue, FleetFacts, OutcomeFact

FLEET = FleetFacts(5_000, 3, 1, 0, 4)
OUTCOME = OutcomeFact(4_000, "c1", "ready", 3, 20.0)
QUEUE = BatchQueue("q", 4_500, (BatchJob(90_000, 12.0),))
FACTS = st.builds(
    WorkloadFacts,
    num_samples=st.integers(0, 3),
    newest_ts_ms=st.integers(0, 10_000),
    sources_seen=st.integers(0, 9),
    sources_known=st.integers(0, 9),
    censored=st.booleans(),
    reset=st.booleans(),
    fleet=st.sampled_from([None, FLEET]),
    outcomes=st.sampled_from([(), (OUTCOME,)]),
    batch=st.sampled_from([(), (QUEUE,)]),
)


@given(st.lists(FACTS, max_size=6))
def test_records_come_back_out_of_columns(told: list[WorkloadFacts]) -> None:
    facts = PageFacts(pack_facts(told))
    assert facts == tuple(told)
    assert len(facts) == len(told)
    assert facts.sampled().tolist() == [row for row, fact in enumerate(told) if fact.num_samples]
    assert facts.newest_ts_ms().tolist() == [fact.newest_ts_ms for fact in told]


@pytest.mark.parametrize("damage", ["num_samples", "newest_ts_ms", "sources_seen", "sources_known", "flags"])
def test_columns_that_do_not_fit_are_refused(damage: str) -> None:
    columns = pack_facts([WorkloadFacts(1, 2, 3, 4)])
    parts = {name: getattr(columns, name) for name in columns.__struct_fields__}
    with pytest.raises(ValueError, match="columns of"):
        PageFacts(type(columns)(**parts | {damage: parts[damage] * 2}))
    with pytest.raises(ValueError, match="beyond"):
        PageFacts(type(columns)(**parts | {"fleet": ((1, FLEET),)}))
