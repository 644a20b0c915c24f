"""One source that lies moves what is decided upon by at most its share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.pages.codec import PageAssembler
from streams.records.schema import encode_sample, encode_tick
from streams.topics import Topics

STEP_MS = 5_000
START = 1_000
TOPICS = Topics()
ARRIVALS, WAITING, MISS = 0, 4, 7


def columns(counted: list[float], waiting: list[float], missed: list[float], cap: float | None) -> list[float]:
    """Indicators of one workload after a step in which source n counted so many requests and had so many waiting."""
    config = StreamConfig(step_ms=STEP_MS, grace_ms=0, skew_ms=0, context_steps=4, source_cap=cap)
    kernel = IngestKernel(0, "requests", config, DEFAULT_CATALOGUE, TOPICS)
    log: list[bytes] = []
    for step in range(2):
        for n, (requests, queue, misses) in enumerate(zip(counted, waiting, missed, strict=True)):
            total = 1_000.0 + step * requests
            values = {
                "requests_started_total": total,
                "num_requests_waiting": queue,
                "slo_total": total,
                "slo_good_total": 1_000.0 + step * (requests - misses),
            }
            log.append(encode_sample("requests", "w", f"pod-{n}", (START + step) * STEP_MS + 10 + n, values))
    log.append(encode_tick((START + 3) * STEP_MS))
    stamp = (START + 4) * STEP_MS
    emissions = kernel.fold([LogRecord(n, stamp, b"w", value) for n, value in enumerate(log)])
    assembler = PageAssembler(config, TOPICS.partitions, DEFAULT_CATALOGUE)
    pages: list[Any] = []
    for emission in emissions:
        for out in emission.commits:
            pages += assembler.feed(LogRecord(len(pages), stamp, out.key, out.value))
    (page,) = [p.page for p in pages if p.page.slot == START + 1]
    return [float(v) for v in page.values[0]]


@given(
    honest=st.lists(st.floats(20, 32).map(lambda x: round(x, 1)), min_size=9, max_size=9),
    lie=st.one_of(st.just(0.0), st.floats(0, 1e12).map(lambda x: round(x, 1))),
)
def test_one_liar_of_ten_moves_a_sum_by_at_most_its_share(honest: list[float], lie: float) -> None:
    """Against the mean of the nine others, which is what an honest tenth would say on average.

    Honest sources differ by less than the cap leaves room for: else they are out of line themselves.
    """
    expected = sum(honest) * 10 / 9
    share = sum(honest) / 9
    nothing = [0.0] * 10
    for column, unit_s in ((ARRIVALS, STEP_MS / 1_000), (WAITING, 1.0)):
        counted, waiting = ([*honest, lie], nothing) if column == ARRIVALS else ([1.0] * 10, [*honest, lie])
        found = columns(counted, waiting, nothing, 2.0)[column] * unit_s
        assert abs(found - expected) <= share * (1 + 1e-5)


def test_without_the_cap_a_liar_is_believed() -> None:
    assert columns([30.0] * 9 + [1e9], [0.0] * 10, [0.0] * 10, None)[ARRIVALS] > 1e8


@pytest.mark.parametrize("missed", [0.0, 1e9])
def test_one_liar_of_ten_moves_the_share_of_misses_by_at_most_its_own(missed: float) -> None:
    honest = [100.0] * 9
    found = columns([*honest, 1e9], [0.0] * 10, [5.0] * 9 + [missed], 2.0)[MISS]
    # Nine of ten miss 5 %; the tenth weighs at most as much as two of them.
    assert 0.05 * 9 / 11 - 1e-6 <= found <= (0.05 * 9 + 2) / 11 + 1e-6


@given(st.lists(st.floats(1, 1.9), min_size=3, max_size=12))
def test_sources_that_are_alike_are_not_touched(counted: list[float]) -> None:
    numbers = [round(c * 100) for c in counted]
    idle = [0.0] * len(numbers)
    free, capped = (columns([float(n) for n in numbers], idle, idle, cap) for cap in (None, 2.0))
    assert free == capped


def test_of_two_nobody_can_say_which_one_lies() -> None:
    assert columns([10.0, 1e6], [0.0, 0.0], [0.0, 0.0], 2.0) == columns([10.0, 1e6], [0.0, 0.0], [0.0, 0.0], None)


@pytest.mark.parametrize("cap", [0.0, 0.5, -1.0, float("nan")])
def test_a_cap_below_one_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match="source_cap must be at least 1"):
        StreamConfig(source_cap=cap)
