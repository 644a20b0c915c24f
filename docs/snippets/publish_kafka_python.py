"""Publish one sample of a serving engine with kafka-python."""

import json
import os
import sys
import time

from kafka import KafkaProducer

workload = sys.argv[1] if len(sys.argv) > 1 else "prod/llm/chat-70b"
producer = KafkaProducer(bootstrap_servers=os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092"), acks="all")
sample = {
    "v": 1,
    "kind": "requests",
    "workload": workload,
    "source": "vllm/chat-70b-7d9f",
    "ts_ms": time.time_ns() // 1_000_000,
    "values": {"requests_started_total": 48211, "num_requests_running": 41, "num_requests_waiting": 3},
}
# The key is the workload: kafka-python finds the partition as Java clients do (murmur2).
producer.send("harmony.telemetry.requests", key=workload.encode(), value=json.dumps(sample).encode()).get(30)
producer.close()
