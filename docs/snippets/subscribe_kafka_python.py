"""Follow the commands with kafka-python: obey what is newer than the last one obeyed, and still in force."""

import json
import os
import time

from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "harmony.commands",
    bootstrap_servers=os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092"),
    group_id="my-actuator",
    auto_offset_reset="earliest",
)
obeyed: dict[str, tuple[int, int]] = {}
for record in consumer:
    command = json.loads(record.value)
    order = command["epoch"], command["sequence"]
    if order <= obeyed.get(command["workload"], (-1, -1)):
        continue  # late, or seen before
    obeyed[command["workload"]] = order
    if command["valid_until_ts_ms"] <= time.time() * 1000:
        continue  # run out: keep what you have, never fall back to 0
    print(command["workload"], "->", command["replicas"], "replicas because", command["reason"], flush=True)
