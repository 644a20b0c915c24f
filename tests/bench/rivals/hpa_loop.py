"""A hand-written scaler: aiokafka, orjson and a dict; every slot an HPA's rule over requests running, one record each.

Frozen: a rival is changed only to make it faster. What it leaves out is deliberate and in its favour: no validation, no
windows, no forecast, no risk, no guards, no state that survives a crash, one hop instead of three, one record per
decision instead of five.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys

import orjson
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

TARGET = 5.0  # requests running per replica


async def run(brokers: str, topic: str, out_topic: str, step_ms: int, grace_ms: int) -> None:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=brokers, auto_offset_reset="earliest", fetch_max_wait_ms=20)
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all", linger_ms=0)
    await producer.start()
    await consumer.start()
    running: dict[int, dict[str, dict[str, float]]] = {}
    while True:
        fetched = await consumer.getmany(timeout_ms=500)
        sent = []
        for tp, records in fetched.items():
            table = running.setdefault(tp.partition, {})
            for record in records:
                told = orjson.loads(record.value)
                if told["kind"] == "requests":
                    sources = table.setdefault(told["workload"], {})
                    sources[told["source"]] = told["values"]["num_requests_running"]
                elif told["kind"] == "tick":
                    origin_ts_ms = (told["ts_ms"] - grace_ms) // step_ms * step_ms
                    for workload, sources in table.items():
                        decision = {
                            "workload": workload, "origin_ts_ms": origin_ts_ms,
                            "replicas": math.ceil(sum(sources.values()) / TARGET), "reason": "hpa",
                        }  # fmt: skip
                        value, key = orjson.dumps(decision), workload.encode()
                        sent.append(await producer.send(out_topic, value, key=key, partition=tp.partition))
        if sent:
            await asyncio.gather(*sent)


uvloop.run(run(**json.loads(sys.argv[1])))
