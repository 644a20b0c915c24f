"""No loop can be faster than this one: aiokafka fetches whole messages and nobody looks at them."""

from __future__ import annotations

import json
import sys
from time import monotonic, process_time

import uvloop
from aiokafka import AIOKafkaConsumer
from peak import peak_mb


async def run(brokers: str, topic: str, group: str, samples: int, pack: int) -> None:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=brokers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=True,
        max_partition_fetch_bytes=4 << 20,
    )  # fmt: skip
    await consumer.start()
    seen, first, started = 0, 0, None
    while seen < samples:
        fetched = await consumer.getmany(timeout_ms=500)
        # Ticks have no key.
        seen += pack * sum(r.key is not None for records in fetched.values() for r in records)
        if started is None:
            # The first batch was there before the clock starts: nothing else would be left to measure of it.
            started, first = (monotonic(), process_time()), seen
    report = {
        "samples": seen - first, "outputs": 0, "wall_s": monotonic() - started[0], "cpu_s": process_time() - started[1],
        "rss_mb": peak_mb(),
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    await consumer.stop()


uvloop.run(run(**json.loads(sys.argv[1])))
