"""A hand-written loop: aiokafka + orjson + numpy, consumer group and commits on, windows to an output topic."""

from __future__ import annotations

import asyncio
import json
import sys
from operator import itemgetter
from time import monotonic, process_time

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from decoding import FORMS
from peak import peak_mb
from windows import Windows


async def run(
    brokers: str, topic: str, out_topic: str, group: str, samples: int, fields: list[str], step_ms: int, grace_ms: int,
    form: str,
) -> None:  # fmt: skip
    decode, pick = FORMS[form], itemgetter(*fields)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=brokers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        max_partition_fetch_bytes=4 << 20,
    )  # fmt: skip
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", linger_ms=5)
    await producer.start()
    await consumer.start()
    windows: dict[int, Windows] = {}
    seen = outputs = 0
    started = committed = None
    while seen < samples:
        fetched = await consumer.getmany(timeout_ms=500)
        if started is None:
            started, committed = (monotonic(), process_time()), monotonic()
        sent = []
        for tp, records in fetched.items():
            table = windows.get(tp.partition) or windows.setdefault(
                tp.partition, Windows(len(fields), step_ms, grace_ms)
            )
            block = decode([r.value for r in records], table, pick)
            if block is None:
                continue
            seen += len(block[0])
            sent += [await producer.send(out_topic, closed, partition=tp.partition) for closed in table.add(*block)]
        if sent:
            await asyncio.gather(*sent)
            outputs += len(sent)
        if monotonic() - committed > 1.0:
            await consumer.commit()
            committed = monotonic()
    last = [(p, closed) for p, table in windows.items() for closed in table.finish()]
    await asyncio.gather(*[await producer.send(out_topic, closed, partition=p) for p, closed in last])
    await consumer.commit()
    report = {
        "samples": seen, "outputs": outputs + len(last), "wall_s": monotonic() - started[0],
        "cpu_s": process_time() - started[1], "rss_mb": peak_mb(),
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    await consumer.stop()
    await producer.stop()


uvloop.run(run(**json.loads(sys.argv[1])))
