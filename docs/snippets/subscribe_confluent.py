"""Follow the forecasts with confluent-kafka: the median and the 95 % quantile at the end of the horizon."""

import json
import os

from confluent_kafka import Consumer

consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("HARMONY_BROKERS", "127.0.0.1:9092"),
        "group.id": "my-dashboard",
        "auto.offset.reset": "earliest",
    }
)
consumer.subscribe(["harmony.forecasts"])
while True:
    record = consumer.poll(1.0)
    if record is None or record.error():
        continue
    forecast = json.loads(record.value())
    last = dict(zip(forecast["quantile_levels"], forecast["targets"]["request.arrival_rate"][-1], strict=True))
    print(forecast["workload"], "median", last[0.5], "95 %", last[0.95], "requests/s", flush=True)
