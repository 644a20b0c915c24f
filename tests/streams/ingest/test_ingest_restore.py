"""A life that begins from pages: which chain of them counts, and that its numbers are those of a life without end."""

from __future__ import annotations

import pytest

from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.ingest.kernel import IngestKernel
from streams.log import ContractBroken
from streams.pages.chain import newest_chain
from streams.pages.page import Page
from tests.streams.ingest.ingest_log import CONFIG, TOPICS, Log


def test_without_pages_reading_starts_at_the_earliest() -> None:
    kernel = IngestKernel.restore(1, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS, [])
    assert (kernel.resume_offset, kernel.stream_time_ms) == (None, None)


def chain_of(n: int) -> list[tuple[Page, str]]:
    log = Log()
    log.tick(500)
    for i in range(n + 1):
        log.sample(1000 * i, {"requests_started_total": i})
    log.tick(1000 * n + 600)
    return [(p.page, p.digest) for p in log.stored]


@pytest.mark.parametrize(
    ("missing", "newest"),
    [((), 9), ((9,), 8), ((8,), 7), ((7, 9), 6), ((0,), 9), ((0, 1, 2, 3), 9), ((2,), 9), ((3, 7), 2)],
)
def test_the_newest_page_with_a_complete_chain_is_taken(missing: tuple[int, ...], newest: int) -> None:
    chain = chain_of(10)
    found = newest_chain([p for i, p in enumerate(chain) if i not in missing], "requests", 1, 4)
    assert found[-1][0].slot == chain[newest][0].slot
    assert len(found) == min(4, newest + 1)


def test_pages_without_a_complete_chain_stop_the_worker() -> None:
    chain = chain_of(10)
    with pytest.raises(ContractBroken, match=r"predecessors in reach.*state reset"):
        newest_chain(chain[-2:], "requests", 1, 4)
    with pytest.raises(ContractBroken, match=r"predecessors in reach.*state reset"):
        newest_chain([chain[4], *chain[6:9]], "requests", 1, 4)
    with pytest.raises(ContractBroken, match=r"among those of gpu/1"):
        newest_chain(chain, "gpu", 1, 4)


def test_a_page_whose_predecessor_has_another_digest_is_not_its_chain() -> None:
    chain = chain_of(10)
    forged = [(page, "00" * 16 if i == 6 else digest) for i, (page, digest) in enumerate(chain)]
    # The forged page itself still follows on its own predecessors.
    assert newest_chain(forged, "requests", 1, 4)[-1][0].slot == chain[6][0].slot


def test_restoring_gives_the_rates_of_a_life_without_end() -> None:
    log = Log()
    for i in range(6):
        log.sample(1000 * i, {"requests_started_total": 7 * i * i})
    pages = [(p.page, p.digest) for p in log.stored]
    kernel = IngestKernel.restore(1, "requests", CONFIG, DEFAULT_CATALOGUE, TOPICS, pages)
    assert kernel.counters == pages[-1][0].counters
    assert kernel.num_workloads == 1
    start = kernel.resume_offset
    assert start is not None
    assert kernel.next_offset == start
    log.kernel, log.emissions = kernel, []
    kernel.fold([r for r in log.records if r.offset >= start])
    log.sample(6000, {"requests_started_total": 7 * 36})
    log.tick(7500)
    assert [round(c or 0) for c in log.cells("request.arrival_rate")] == [7 * 7, 7 * 9, 7 * 11]


@pytest.mark.parametrize(
    ("source", "old", "old_name", "new", "new_name"),
    [
        ("requests", "prompt_tokens_total", "request.prompt_token_rate", "uncached_prompt_tokens_total",
         "request.uncached_prompt_token_rate"),
        ("gpu", "power_w", "gpu.power_w", "energy_total_j", "gpu.energy_w"),
    ],
)  # fmt: skip
def test_pages_of_a_release_with_fewer_indicators_are_restored(
    source: Source, old: str, old_name: str, new: str, new_name: str
) -> None:
    """What they hold goes on; what they do not hold begins to be observed."""
    fewer = tuple(i for i in DEFAULT_CATALOGUE if i.name != new_name)
    log = Log(source=source)
    log.kernel = IngestKernel(1, source, CONFIG, fewer, TOPICS)
    for i in range(6):
        log.sample(1000 * i, {old: 100.0 * i, new: 40.0 * i})
    pages = [(p.page, p.digest) for p in log.stored]
    kernel = IngestKernel.restore(1, source, CONFIG, DEFAULT_CATALOGUE, TOPICS, pages)
    log.kernel, log.emissions = kernel, []
    kernel.fold([r for r in log.records if r.offset >= (kernel.resume_offset or 0)])
    for i in range(6, 9):
        log.sample(1000 * i, {old: 100.0 * i, new: 40.0 * i})
    log.tick(9500)
    assert log.cells(old_name) == ([100.0] * 5 if source == "requests" else [400.0, 500.0, 600.0, 700.0, 800.0])
    assert log.cells(new_name) == [None, *[40.0] * 4], "there is nothing to compare its first value with"
