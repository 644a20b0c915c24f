"""Publishes the outputs of a stage in whole batches: sent one by one, every record costs a future and a task.

Records of one partition keep their order. A few records, or large ones, go through the client's own accumulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from aiokafka.partitioner import murmur2

from streams.log import OutRecord

_MIN_BATCH_RECORDS: Final = 8  # fewer records of a partition are sent one by one
_MAX_BATCHED_VALUE_BYTES: Final = 1 << 16  # a larger value makes a batch useless
_KEY_CACHE_ENTRIES: Final = 1 << 17


@lru_cache(_KEY_CACHE_ENTRIES)
def partition_of(key: bytes, num_partitions: int) -> int:
    """Partition of a key, as the default partitioner of every Kafka client computes it.

    >>> partition_of(b"chat", 4)
    2
    """
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % num_partitions


async def send_batches(producer: Any, records: Sequence[OutRecord]) -> None:
    """Publish and await the broker's acknowledgement of every record.

    Args:
        producer: a started `aiokafka.AIOKafkaProducer`.

    Raises:
        KafkaError: the broker did not take a batch; what was sent before it may be in the log.
    """
    grouped: dict[tuple[str, int | None], list[OutRecord]] = {}
    counts: dict[str, int] = {}
    for record in records:
        partition = record.partition
        if partition is None and record.key is not None:
            if record.topic not in counts:
                counts[record.topic] = len(await producer.partitions_for(record.topic))
            partition = partition_of(record.key, counts[record.topic])
        grouped.setdefault((record.topic, partition), []).append(record)
    await asyncio.gather(*(_send_partition(producer, *place, group) for place, group in grouped.items()))


async def _send_each(producer: Any, records: Sequence[OutRecord]) -> None:
    acknowledged = [
        await producer.send(r.topic, r.value, key=r.key, partition=r.partition, headers=list(r.headers))
        for r in records
    ]
    await asyncio.gather(*acknowledged)


async def _send_partition(producer: Any, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
    largest = max(len(record.value or b"") for record in records)
    if partition is None or len(records) < _MIN_BATCH_RECORDS or largest > _MAX_BATCHED_VALUE_BYTES:
        await _send_each(producer, records)
        return
    acknowledged = []
    batch = producer.create_batch()
    for record in records:
        if not _appended(batch, record):
            batch.close()
            acknowledged.append(await producer.send_batch(batch, topic, partition=partition))
            batch = producer.create_batch()
            _appended(batch, record)  # the first of a batch always fits
    batch.close()
    acknowledged.append(await producer.send_batch(batch, topic, partition=partition))
    await asyncio.gather(*acknowledged)


def _appended(batch: Any, record: OutRecord) -> bool:
    return batch.append(timestamp=None, key=record.key, value=record.value, headers=list(record.headers)) is not None
