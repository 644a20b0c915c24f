"""Compile or load the loops of ingest before a worker joins, so that no slot waits for it."""

from __future__ import annotations

from streams.catalogue import DEFAULT_CATALOGUE
from streams.compiled import compiling_once
from streams.config import StreamConfig
from streams.ingest.kernel import IngestKernel
from streams.log import LogRecord
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_packed, encode_tick
from streams.topics import Topics

# Samples of the warm-up; more than the initial rows of the pool, so that growing is compiled too.
_NUM_SAMPLES = 1_100


def warm_up() -> None:
    """Fold a slot of made-up samples and close it, so that every loop runs once.

    When several workers of a host start at once, one compiles and the others wait and read its code.
    """
    with compiling_once():
        _close_a_slot()


def _close_a_slot() -> None:
    config = StreamConfig()
    instants = list(range(_NUM_SAMPLES))
    sources = ["a"] * _NUM_SAMPLES
    values = {"num_requests_running": [1.0] * _NUM_SAMPLES, "requests_started_total": [1.0] * _NUM_SAMPLES}
    log = [
        (b"w", encode_packed("requests", "w", sources, instants, values)),
        (b"w", encode_fleet("w", "a", FleetFacts(0, 1, 0, 0))),
        (None, encode_tick(3 * config.step_ms + config.grace_ms)),
    ]
    kernel = IngestKernel(0, "requests", config, DEFAULT_CATALOGUE, Topics())
    stamp_ms = 4 * config.step_ms + config.grace_ms
    kernel.fold([LogRecord(offset, stamp_ms, key, value) for offset, (key, value) in enumerate(log)])
