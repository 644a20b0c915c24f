"""The ingest kernel against an oracle that shares no code with it, on logs with everything that goes wrong in them."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest

from streams.catalogue import DEFAULT_CATALOGUE, SOURCES, Source
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import Emission, LogRecord
from streams.pages.codec import PageAssembler, StoredPage, seal_page
from streams.topics import Topics
from tests.oracles.ingest_oracle import expected_pages
from tests.oracles.page_check import check_page, oracle_settings
from tests.oracles.record_oracle import RawRecord
from tests.streams.ingest.random_logs import random_log
from tests.streams.pages.page_bytes import encode_page

TOPICS = Topics()
SETTINGS = (
    StreamConfig(
        step_ms=1000, grace_ms=1500, skew_ms=300, context_steps=6, max_workloads=100, controls_in_telemetry=True
    ),
    StreamConfig(step_ms=1000, grace_ms=400, skew_ms=400, context_steps=3, max_workloads=2, source_silence_steps=2),
    StreamConfig(step_ms=700, grace_ms=2100, skew_ms=0, context_steps=16, max_workloads=3, max_record_bytes=1500),
    StreamConfig(
        step_ms=1000, grace_ms=1500, skew_ms=300, context_steps=6, source_cap=1.25, controls_in_telemetry=True
    ),
    StreamConfig(step_ms=1000, grace_ms=1500, skew_ms=300, context_steps=3, max_undeclared=3),
)
IDS = ["plain", "crowded", "small", "capped", "shared"]
DECLARED = ("team/w-2",)


def kernel_of(source: Source, config: StreamConfig) -> IngestKernel:
    return IngestKernel(0, source, config, DEFAULT_CATALOGUE, TOPICS, DECLARED)


def log_of(seed: int, source: Source, config: StreamConfig, num_slots: int = 40) -> list[RawRecord]:
    return random_log(seed, source, config.step_ms, config.grace_ms, config.skew_ms, num_slots)


def pages_of(commits: list[tuple[bytes, bytes]], config: StreamConfig) -> list[StoredPage]:
    assembler = PageAssembler(config, TOPICS.partitions, DEFAULT_CATALOGUE)
    found: list[StoredPage] = []
    for offset, (key, value) in enumerate(commits):
        found += assembler.feed(LogRecord(offset, 0, key, value))
    return found


def commits_of(emissions: list[Emission]) -> list[tuple[bytes, bytes]]:
    return [(c.key or b"", c.value or b"") for e in emissions for c in e.commits]


@pytest.mark.parametrize("config", SETTINGS, ids=IDS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(4))
def test_every_page_is_what_the_oracle_says(seed: int, source: Source, config: StreamConfig) -> None:
    log = log_of(seed, source, config)
    want, counters = expected_pages(
        source,
        log,
        oracle_settings(config, DECLARED),
    )
    kernel = kernel_of(source, config)
    emissions = kernel.fold([LogRecord(*r) for r in log])
    pages = pages_of(commits_of(emissions), config)
    assert [p.page.slot for p in pages] == [w["slot"] for w in want]
    for stored, page in zip(pages, want, strict=True):
        check_page(stored.page, page)
    # What is read says all that was written: it gives the same bytes again.
    again = [encode_page(p.page, TOPICS.partitions) for p in pages]
    assert [pair for page in again for pair in page.records] == commits_of(emissions)
    assert msgspec.structs.asdict(kernel.counters) == counters
    assert sum(kernel.dead_letter_counts.values()) == counters["dead"]


def test_the_random_logs_hold_what_they_promise() -> None:
    counters = dict.fromkeys(("late", "duplicate", "dead", "future", "refused", "unknown_names", "tombstones"), 0)
    resets = censored = outcomes = batch = controls = empty = observed_p95 = stuck = 0
    for config in SETTINGS:
        kernel = kernel_of("requests", config)
        pages = pages_of(commits_of(kernel.fold([LogRecord(*r) for r in log_of(1, "requests", config)])), config)
        for name in counters:
            counters[name] += getattr(kernel.counters, name)
        facts = [f for p in pages for f in p.page.facts]
        resets += sum(f.reset for f in facts)
        censored += sum(f.censored for f in facts)
        stuck += sum(f.num_samples > 0 and f.sources_seen == 0 for f in facts)
        outcomes += sum(len(f.outcomes) for f in facts)
        batch += sum(len(q.jobs) for f in facts for q in f.batch)
        controls += sum(len(p.page.controls) for p in pages)
        empty += sum(not p.page.workloads for p in pages)
        observed_p95 += sum(int(p.page.observed[:, 8].sum()) for p in pages)
    assert all(counters.values()), counters
    assert all((resets, censored, stuck, outcomes, batch, controls, empty, observed_p95))


def crash_and_replay(log: list[RawRecord], source: Source, config: StreamConfig, rng: random.Random) -> list[bytes]:
    """Run a log through lives that end at random, also between two chunks of a commit; returns the pages topic."""
    topic: list[tuple[bytes, bytes]] = []
    by_offset = [LogRecord(*r) for r in log]
    for _ in range(12):
        pages = [(p.page, p.digest) for p in pages_of(topic, config)]
        kernel = IngestKernel.restore(0, source, config, DEFAULT_CATALOGUE, TOPICS, pages, DECLARED)
        start = kernel.resume_offset or 0
        todo = [r for r in by_offset if r.offset >= start]
        lives = rng.randint(1, max(1, len(todo) // 3))
        while todo and lives > 0:
            size = rng.randint(1, 40)
            batch, todo, lives = todo[:size], todo[size:], lives - size
            written = commits_of(kernel.fold(batch))
            topic += written if lives > 0 else written[: rng.randint(0, len(written))]
    pages = [(p.page, p.digest) for p in pages_of(topic, config)]
    kernel = IngestKernel.restore(0, source, config, DEFAULT_CATALOGUE, TOPICS, pages, DECLARED)
    topic += commits_of(kernel.fold([r for r in by_offset if r.offset >= (kernel.resume_offset or 0)]))
    return [key + value for key, value in topic]


@pytest.mark.parametrize("config", SETTINGS, ids=IDS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(6))
def test_lives_that_end_anywhere_write_the_same_pages(seed: int, source: Source, config: StreamConfig) -> None:
    log = log_of(100 + seed, source, config)
    unbroken = [key + value for key, value in commits_of(kernel_of(source, config).fold([LogRecord(*r) for r in log]))]
    written = crash_and_replay(log, source, config, random.Random(seed))
    # A repeat is byte for byte the record it repeats.
    assert len(written) >= len(unbroken)
    assert list(dict.fromkeys(written)) == unbroken


@pytest.mark.parametrize("seed", range(6))
def test_pages_torn_between_their_chunks_are_written_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SETTINGS[seed % len(SETTINGS)]
    monkeypatch.setattr("streams.ingest.page_writer.seal_page", partial(seal_page, chunk_bytes=300))
    log = log_of(300 + seed, "requests", config)
    unbroken = [
        key + value for key, value in commits_of(kernel_of("requests", config).fold([LogRecord(*r) for r in log]))
    ]
    written = crash_and_replay(log, "requests", config, random.Random(seed))
    assert len(unbroken) > 2 * len({page[:13] for page in unbroken})
    assert list(dict.fromkeys(written)) == unbroken


@pytest.mark.parametrize("seed", range(6))
def test_holes_in_the_pages_are_filled_with_the_same_pages(seed: int) -> None:
    config, rng = SETTINGS[seed % len(SETTINGS)], random.Random(seed)
    records = [LogRecord(*r) for r in log_of(400 + seed, "requests", config)]
    unbroken = commits_of(kernel_of("requests", config).fold(records))
    # Some of the last pages never reached the broker, others after them did.
    at = len(unbroken) - rng.randint(1, 5)
    holey = unbroken[:at] + [c for c in unbroken[at:] if rng.random() < 0.5]
    stored = [(p.page, p.digest) for p in pages_of(holey, config)]
    kernel = IngestKernel.restore(0, "requests", config, DEFAULT_CATALOGUE, TOPICS, stored, DECLARED)
    again = commits_of(kernel.fold([r for r in records if r.offset >= (kernel.resume_offset or 0)]))
    assert set(again) <= set(unbroken)
    assert set(holey) | set(again) == set(unbroken)


@pytest.mark.parametrize("seed", range(6))
def test_pages_do_not_depend_on_how_the_log_was_cut_into_batches(seed: int) -> None:
    config, rng = SETTINGS[seed % len(SETTINGS)], random.Random(seed)
    records = [LogRecord(*r) for r in log_of(200 + seed, "requests", config)]
    whole, cut = kernel_of("requests", config), kernel_of("requests", config)
    emissions: list[Emission] = []
    at = 0
    while at < len(records):
        size = rng.choice([1, 1, 2, 7, 100])
        emissions += cut.fold(records[at : at + size])
        at += size
    one = whole.fold(records)
    assert commits_of(emissions) == commits_of(one)
    letters = [[(r.value, r.headers) for e in es for group in e.outputs for r in group] for es in (emissions, one)]
    assert letters[0] == letters[1]
    assert cut.counters == whole.counters
    assert cut.stream_time_ms == whole.stream_time_ms
