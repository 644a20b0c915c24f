"""Slots that close together have the pages that they have when each closes alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.ingest import aggregate as closing
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.records.schema import encode_sample, encode_tick
from streams.topics import Topics

STEP_MS = 1_000
START = 1_763_636_400
NAMES = ("requests_started_total", "requests_finished_total", "slo_total", "slo_good_total", "num_requests_waiting")


def log_of(seed: int, num_slots: int, gaps: float, silences: bool) -> list[LogRecord]:
    """Counters with gaps, resets and sources that come and go, all of it open until the last tick closes it."""
    rng = random.Random(seed)
    counters = {(w, s): dict.fromkeys(NAMES, 0.0) for w in range(4) for s in range(rng.randint(1, 3))}
    log: list[LogRecord] = []
    slot = START
    for _ in range(num_slots):
        slot += rng.choice([1, 1, 1, 2, 7]) if silences else 1
        for (w, s), state in counters.items():
            for ts_ms in sorted(rng.sample(range(slot * STEP_MS, (slot + 1) * STEP_MS), rng.choice([0, 1, 1, 2]))):
                for name in NAMES:
                    state[name] = 0.0 if rng.random() < 0.03 else state[name] + rng.randint(0, 9)
                values = {name: state[name] for name in NAMES if rng.random() >= gaps}
                value = encode_sample("requests", f"w{w}", f"p{s}", ts_ms, values)
                log.append(LogRecord(len(log), slot * STEP_MS, f"w{w}".encode(), value))
    log.append(LogRecord(len(log), (slot + 200) * STEP_MS, None, encode_tick((slot + 101) * STEP_MS)))
    return log


def pages(log: list[LogRecord], config: StreamConfig, together: int) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "_MAX_GROUP_SAMPLES", together)
        kernel = IngestKernel(0, "requests", config, DEFAULT_CATALOGUE, Topics())
        return [c.value or b"" for e in kernel.fold(log) for c in e.commits]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_slots=st.integers(1, 30),
    gaps=st.sampled_from([0.0, 0.2, 0.9]),
    silences=st.booleans(),
    context_steps=st.sampled_from([1, 3, 12]),
    most=st.sampled_from([2, 9]),
    together=st.sampled_from([5, 40, 10**6]),
)
def test_slots_closed_together_have_the_pages_of_slots_closed_alone(
    seed: int, num_slots: int, gaps: float, silences: bool, context_steps: int, most: int, together: int
) -> None:
    config = StreamConfig(
        step_ms=STEP_MS, grace_ms=100 * STEP_MS, context_steps=context_steps, max_workloads=most, source_silence_steps=2
    )
    log = log_of(seed, num_slots, gaps, silences)
    alone = pages(log, config, 0)
    assert len(alone) >= num_slots
    assert pages(log, config, together) == alone
