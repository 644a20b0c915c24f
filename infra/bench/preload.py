"""Fills a topic before the clock starts: whole record batches, by murmur2 of the key, ticks last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

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
