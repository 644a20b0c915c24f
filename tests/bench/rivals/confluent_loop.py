"""A hand-written loop: confluent-kafka + orjson + numpy, consumer group and commits on, windows to an output topic."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from operator import itemgetter
from time import monotonic, process_time

from confluent_kafka import Consumer, KafkaException, Producer
from decoding import FORMS
from peak import peak_mb
from windows import Windows


def run(
    brokers: str, topic: str, out_topic: str, group: str, samples: int, fields: list[str], step_ms: int, grace_ms: int,
    form: str,
) -> None:  # fmt: skip
    decode, pick = FORMS[form], itemgetter(*fields)
    consumer = Consumer({
        "bootstrap.servers": brokers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        # The default of 1000 ms lets the queue run dry between fetches.
        "fetch.queue.backoff.ms": 10, "queued.min.messages": 100_000, "max.partition.fetch.bytes": 4 << 20,
        "fetch.wait.max.ms": 50,
    })  # fmt: skip
    producer = Producer({"bootstrap.servers": brokers, "acks": "all", "linger.ms": 5})
    consumer.subscribe([topic])
    windows: dict[int, Windows] = {}
    seen = outputs = 0
    started = committed = None
    # Few messages at a time for the packed form: `consume` waits until it has as many as it was asked for.
    at_once = 1000 if form == "single" else 32
    while seen < samples:
        messages = consumer.consume(at_once, 0.05)
        if not messages:
            continue
        if started is None:
            started, committed = (monotonic(), process_time()), monotonic()
        by_partition: dict[int, list[bytes]] = {}
        for message in messages:
            by_partition.setdefault(message.partition(), []).append(message.value())
        for partition, values in by_partition.items():
            table = windows.get(partition) or windows.setdefault(partition, Windows(len(fields), step_ms, grace_ms))
            block = decode(values, table, pick)
            if block is None:
                continue
            seen += len(block[0])
            for closed in table.add(*block):
                producer.produce(out_topic, closed, partition=partition)
                outputs += 1
        producer.poll(0)
        if monotonic() - committed > 1.0:
            producer.flush()
            consumer.commit(asynchronous=True)
            committed = monotonic()
    for partition, table in windows.items():
        for closed in table.finish():
            producer.produce(out_topic, closed, partition=partition)
            outputs += 1
    producer.flush()
    with suppress(KafkaException):  # nothing new since the last commit
        consumer.commit(asynchronous=False)
    report = {
        "samples": seen, "outputs": outputs, "wall_s": monotonic() - started[0],
        "cpu_s": process_time() - started[1], "rss_mb": peak_mb(),
    }  # fmt: skip
    print(json.dumps(report), flush=True)
    consumer.close()


run(**json.loads(sys.argv[1]))
