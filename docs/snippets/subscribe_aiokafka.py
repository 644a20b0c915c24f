"""Follow the decisions with aiokafka: every one of them, holds included, with the guards that spoke."""

import asyncio
import json
import os

from aiokafka import AIOKafkaConsumer


async def main() -> None:
    brokers = os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092")
    async with AIOKafkaConsumer(
        "harmony.decisions", bootstrap_servers=brokers, group_id="my-auditor", auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            decision = json.loads(record.value)
            guards = ", ".join(f"{g['guard']} {g['before']}->{g['after']}" for g in decision["guards"])
            print(decision["workload"], decision["action"], decision["replicas"]["final"], guards, flush=True)


asyncio.run(main())
