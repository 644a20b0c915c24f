"""Who is served in a flood of names does not depend on when workers started: pages are the same, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE
from streams.ingest import slots as slots_module
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord, OutRecord
from streams.pages.codec import PageAssembler
from tests.streams.ingest.ingest_log import CONFIG, TOPICS, Log

FLOODED = replace(CONFIG, grace_ms=2_000, context_steps=3, max_workloads=1)
FLOOD = [f"flood-{n}" for n in range(3)]


@pytest.fixture(autouse=True)
def _few_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_SOURCES_PER_WORKLOAD", 2)


def restored(commits: list[OutRecord]) -> IngestKernel:
    reader = PageAssembler(FLOODED, TOPICS.partitions, DEFAULT_CATALOGUE)
    pages = [p for n, r in enumerate(commits) for p in reader.feed(LogRecord(n, 0, r.key, r.value))]
    told = [(p.page, p.digest) for p in pages]
    return IngestKernel.restore(1, "requests", FLOODED, DEFAULT_CATALOGUE, TOPICS, told)


def read_on(kernel: IngestKernel, records: list[LogRecord], batch: int) -> list[OutRecord]:
    rest = records[kernel.resume_offset or 0 :]
    batches = [rest[at : at + batch] for at in range(0, len(rest), batch)]
    return [c for records in batches for e in kernel.fold(records) for c in e.commits]


def assert_same_whenever_it_starts(log: Log) -> None:
    """One life after the other, each killed once it has written a page, against one without end that reads singly."""
    whole = [c for e in log.emissions for c in e.commits]
    for written in range(len(whole)):
        for batch in (1, 7, len(log.records)):
            assert whole[:written] + read_on(restored(whole[:written]), log.records, batch) == whole


@pytest.mark.parametrize("first_in_older_slot", [True, False])
def test_a_workload_of_an_older_open_slot_is_new_to_every_life(first_in_older_slot: bool) -> None:
    log = Log(FLOODED)
    log.tick(0)
    if first_in_older_slot:
        log.sample(100, {}, workload="new")
    for name in FLOOD:
        log.sample(1_100, {}, workload=name)
    log.sample(1_200, {}, workload="new")
    if not first_in_older_slot:
        log.sample(300, {}, stamp=1_300, workload="new")
    log.tick(3_000)
    log.tick(4_000)
    assert [page.workloads for page in log.pages] == [("new",), ()]
    assert_same_whenever_it_starts(log)


TOLD = st.tuples(
    st.sampled_from([0, 0, 0, 200, 1_000]),
    st.integers(-2_500, 200),
    st.sampled_from(["known", "new", *FLOOD]),
    st.sampled_from("aaabcd"),
)


@given(st.lists(TOLD, max_size=60))
def test_pages_in_a_flood_are_those_of_a_life_without_end(told: list[tuple[int, int, str, str]]) -> None:
    log, now = Log(FLOODED), 0
    log.tick(0)
    for wait, ahead, workload, source in told:
        now += wait
        log.sample(now + ahead, {"num_requests_running": 1.0}, stamp=now, workload=workload, source=source)
    for slot in range(4):
        log.tick(now + 1_000 * slot)
    assert_same_whenever_it_starts(log)
