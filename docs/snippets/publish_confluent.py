"""Publish how many replicas there are with confluent-kafka."""

import json
import os
import sys
import time

from confluent_kafka import Producer

workload = sys.argv[1] if len(sys.argv) > 1 else "prod/llm/chat-70b"
producer = Producer(
    {
        "bootstrap.servers": os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092"),
        "acks": "all",
        # librdkafka's own default (CRC32) puts a key on another partition than every other client does.
        "partitioner": "murmur2_random",
    }
)
facts = {
    "v": 1,
    "kind": "fleet",
    "workload": workload,
    "source": "k8s",
    "ts_ms": time.time_ns() // 1_000_000,
    "values": {"replicas_desired": 7, "replicas_ready": 6, "replicas_pending": 1, "replicas_draining": 0},
}
failures = []
producer.produce(
    "harmony.telemetry.requests",
    key=workload.encode(),
    value=json.dumps(facts).encode(),
    on_delivery=lambda error, _message: failures.append(error) if error else None,
)
if producer.flush(30) or failures:
    sys.exit(f"not delivered: {failures}")
