"""No loop can be faster than this one: aiokafka fetches whole messages and nobody looks at them.

With `page_bytes` it writes as many bytes as the pages of these samples hold, one record per `page_samples` of a
partition, and waits until all are acknowledged: no loop that keeps its windows in Kafka can be faster than that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from time import monotonic, process_time

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from peak import peak_mb


class Pages:
    """Writes bytes that nobody chose, as often as so many samples of a partition were seen."""

    def __init__(self, brokers: str, topic: str, page_samples: int, page_bytes: int) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", max_batch_size=1 << 19)
        self._topic, self._samples, self._page = topic, page_samples, os.urandom(page_bytes)
        self._seen: dict[int, int] = {}
        self.sent: list[asyncio.Future] = []

    async def start(self) -> None:
        await self._producer.start()

    async def write(self, partition: int, samples: int) -> None:
        seen = self._seen.get(partition, 0) + samples
        while seen >= self._samples:
            seen -= self._samples
            self.sent.append(await self._producer.send(self._topic, self._page, partition=partition))
        self._seen[partition] = seen

    async def done(self) -> int:
        await asyncio.gather(*self.sent)
        return len(self.sent)

    async def stop(self) -> None:
        await self._producer.stop()


async def run(
    brokers: str, topic: str, group: str, samples: int, pack: int, out_topic: str = "", page_samples: int = 0,
    page_bytes: int = 0,
) -> None:  # fmt: skip
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=brokers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=True,
        max_partition_fetch_bytes=4 << 20,
    )  # fmt: skip
    pages = Pages(brokers, out_topic, page_samples, page_bytes) if page_bytes else None
    if pages is not None:
        await pages.start()
    await consumer.start()
    seen, first, started = 0, 0, None
    while seen < samples:
        fetched = await consumer.getmany(timeout_ms=500)
        # The first batch was there before the clock starts: where nothing is written, little else would be measured.
        if started is None and pages is not None and fetched:
            started = (monotonic(), process_time())
        for tp, records in fetched.items():
            # Ticks have no key.
            new = pack * sum(r.key is not None for r in records)
            seen += new
            if pages is not None:
                await pages.write(tp.partition, new)
        if started is None:
            started, first = (monotonic(), process_time()), seen
    outputs = 0 if pages is None else await pages.done()
    report = {
        "samples": seen - first, "outputs": outputs, "wall_s": monotonic() - started[0],
        "cpu_s": process_time() - started[1], "rss_mb": peak_mb(),
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    await consumer.stop()
    if pages is not None:
        await pages.stop()


uvloop.run(run(**json.loads(sys.argv[1])))
