"""The fixed ingest job: 200 workloads of five replicas, eleven fields, one sample per replica and second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from streams.catalogue import DEFAULT_CATALOGUE, Indicator
from streams.config import StreamConfig
from streams.records.binary import encode_binary
from streams.records.schema import encode_packed, encode_sample, encode_tick, record_key

Form = Literal["single", "packed", "binary"]
FORMS: tuple[Form, ...] = ("single", "packed", "binary")

PARTITIONS = 4
NUM_WORKLOADS = 200
SOURCES_PER_WORKLOAD = 5
PACK = 256
# A slot of one partition, and its page as we write it, in bytes.
PAGE_SAMPLES = NUM_WORKLOADS * SOURCES_PER_WORKLOAD // PARTITIONS
PAGE_BYTES = 21_000
START_TS_MS = 1_763_636_400_000
# A packed record holds 51 s of a workload, and a slot may not close before the records of all of them are in.
STREAM = StreamConfig(step_ms=1_000, grace_ms=60_000, skew_ms=1_000, context_steps=128)

_COUNTERS = {
    "requests_started_total": 20,
    "prompt_tokens_total": 9_000,
    "generation_tokens_total": 4_000,
    "slo_good_total": 19,
    "slo_total": 20,
}
_GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "num_adapters_loaded")
_RATIOS = ("kv_cache_usage_ratio", "prefix_cache_hit_ratio")
FIELDS: tuple[str, ...] = (*_COUNTERS, *_GAUGES, *_RATIOS)

# The default indicators of the request side without histograms, and three gauges more: eleven fields, 14 columns.
CATALOGUE: tuple[Indicator, ...] = (
    *(i for i in DEFAULT_CATALOGUE if i.source == "requests" and i.rule != "p95"),
    Indicator("engine.swapped", "1", 2, "requests", "mean", ("num_requests_swapped",)),
    Indicator("engine.adapters", "1", 2, "requests", "max", ("num_adapters_loaded",), "max"),
    Indicator("engine.prefix_hit_ratio", "1", 2, "requests", "mean", ("prefix_cache_hit_ratio",), "mean", upper=1.0),
)


@dataclass(frozen=True, slots=True)
class JobSample:
    """One sample; `values` in the order of `FIELDS`."""

    workload: str
    source: str
    ts_ms: int
    values: tuple[float, ...]


def workload_name(number: int) -> str:
    return f"prod/llm/chat-{number:03d}"


def samples(count: int, seed: int = 0) -> Iterator[JobSample]:
    """The job's samples in order of event time."""
    rng = random.Random(seed)
    counters = {(w, s): [rng.randrange(1_000_000) for _ in _COUNTERS] for w, s in _series()}
    num_samples = 0
    for second in range(count):
        for source in range(SOURCES_PER_WORKLOAD):
            for workload in range(NUM_WORKLOADS):
                if num_samples == count:
                    return
                num_samples += 1
                state = counters[workload, source]
                for i, most in enumerate(_COUNTERS.values()):
                    state[i] += rng.randrange(most + 1)
                gauges = [rng.randrange(64) for _ in _GAUGES]
                ratios = [round(rng.random(), 4) for _ in _RATIOS]
                name = workload_name(workload)
                yield JobSample(
                    name,
                    f"{name.rsplit('/', 1)[-1]}-{source}",
                    START_TS_MS + 1_000 * second + 200 * source + workload % 200,
                    (*state, *gauges, *ratios),
                )


def _series() -> Iterator[tuple[int, int]]:
    return ((w, s) for w in range(NUM_WORKLOADS) for s in range(SOURCES_PER_WORKLOAD))


def records(form: Form, count: int, seed: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """The samples as (key, value) records in log order; packed and binary ones hold 256 samples of one workload."""
    if form == "single":
        for s in samples(count, seed):
            values = dict(zip(FIELDS, s.values, strict=True))
            yield record_key(s.workload), encode_sample("requests", s.workload, s.source, s.ts_ms, values)
        return
    pack_up = packed if form == "packed" else binary
    waiting: dict[str, list[JobSample]] = {}
    for s in samples(count, seed):
        pack = waiting.setdefault(s.workload, [])
        pack.append(s)
        if len(pack) == PACK:
            yield record_key(s.workload), pack_up(waiting.pop(s.workload))
    for workload, pack in waiting.items():
        yield record_key(workload), pack_up(pack)


def packed(pack: Sequence[JobSample]) -> bytes:
    """Samples of one workload as one columnar JSON record."""
    columns = zip(*(s.values for s in pack), strict=True)
    return encode_packed(
        "requests",
        pack[0].workload,
        [s.source for s in pack],
        [s.ts_ms for s in pack],
        dict(zip(FIELDS, columns, strict=True)),
    )


def binary(pack: Sequence[JobSample]) -> bytes:
    """Samples of one workload as one binary record."""
    columns = zip(*(s.values for s in pack), strict=True)
    values = dict(zip(FIELDS, columns, strict=True))
    return encode_binary("requests", pack[0].workload, [s.source for s in pack], [s.ts_ms for s in pack], values)


def closing_tick(count: int) -> bytes:
    """A tick that closes every slot of the job."""
    seconds = -(-count // (NUM_WORKLOADS * SOURCES_PER_WORKLOAD))
    return encode_tick(START_TS_MS + 1_000 * (seconds + 1) + STREAM.grace_ms)


# Fills a topic before the clock starts: whole record batches, by murmur2 of the key, ticks last.


# Telemetry topics take batches of at most 128 KiB.
_BATCH_BYTES = 120 * 1024
_IN_FLIGHT = 16


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's own clients choose for the key."""
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


def preload(
    brokers: str, topic: str, partitions: int, records: Iterable[tuple[bytes, bytes]], last: bytes | None = None
) -> int:
    """Publish the records, then `last` (a tick) to every partition; returns how many bytes of values went out."""
    return asyncio.run(_preload(brokers, topic, partitions, records, last))


async def _preload(
    brokers: str, topic: str, partitions: int, records: Iterable[tuple[bytes, bytes]], last: bytes | None
) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks=1, max_batch_size=_BATCH_BYTES)
    await producer.start()
    try:
        open_batches = {p: producer.create_batch() for p in range(partitions)}
        waiting: list[asyncio.Future[object]] = []
        num_bytes = 0

        async def send(partition: int) -> None:
            waiting.append(await producer.send_batch(open_batches[partition], topic, partition=partition))
            open_batches[partition] = producer.create_batch()
            if len(waiting) >= _IN_FLIGHT:
                await asyncio.gather(*waiting)
                waiting.clear()

        async def add(partition: int, key: bytes | None, value: bytes) -> None:
            if open_batches[partition].append(key=key, value=value, timestamp=None) is None:
                await send(partition)
                open_batches[partition].append(key=key, value=value, timestamp=None)

        for key, value in records:
            num_bytes += len(value)
            await add(partition_of(key, partitions), key, value)
        for partition in range(partitions):
            if last is not None:
                await add(partition, None, last)
            if open_batches[partition].record_count():
                await send(partition)
        await asyncio.gather(*waiting)
        return num_bytes
    finally:
        await producer.stop()
