"""Publish one sample of a GPU with aiokafka."""

import asyncio
import json
import os
import sys
import time

from aiokafka import AIOKafkaProducer

workload = sys.argv[1] if len(sys.argv) > 1 else "prod/llm/chat-70b"


async def main() -> None:
    brokers = os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092")
    sample = {
        "v": 1,
        "kind": "gpu",
        "workload": workload,
        "source": "node3/GPU-1",
        "ts_ms": time.time_ns() // 1_000_000,
        "values": {"sm_active_ratio": 0.83, "memory_used_bytes": 68719476736, "memory_total_bytes": 85899345920},
    }
    async with AIOKafkaProducer(bootstrap_servers=brokers, acks="all") as producer:
        await producer.send_and_wait("harmony.telemetry.gpu", key=workload.encode(), value=json.dumps(sample).encode())


asyncio.run(main())
