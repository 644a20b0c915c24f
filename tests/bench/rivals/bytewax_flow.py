"""Bytewax as its documentation teaches it: a fold over tumbling windows per key, without a recovery store."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
import orjson
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main
from stopwatch import Stopwatch

job = json.loads(sys.argv[1])
fields = job["fields"]
watch = Stopwatch(job["samples"])


def decode(message: object) -> tuple | None:
    body = orjson.loads(message.value)
    if "values" not in body:
        return None
    watch.count()
    at = datetime.fromtimestamp(body["ts_ms"] / 1000, UTC)
    return body["workload"], (at, [body["values"][name] for name in fields])


def begin() -> list:
    return [0, [0.0] * len(fields), [float("-inf")] * len(fields)]


def add(window: list, sample: tuple) -> list:
    values = sample[1]
    window[0] += 1
    window[1] = [a + b for a, b in zip(window[1], values, strict=True)]
    window[2] = [max(a, b) for a, b in zip(window[2], values, strict=True)]
    return window


def merged(one: list, other: list) -> list:
    total = [a + b for a, b in zip(one[1], other[1], strict=True)]
    return [one[0] + other[0], total, [max(a, b) for a, b in zip(one[2], other[2], strict=True)]]


def encode(keyed: tuple) -> KafkaSinkMessage:
    watch.outputs += 1
    workload, (window, (count, total, top)) = keyed
    body = {"window": window, "mean": [x / count for x in total], "max": top, "count": count}
    return KafkaSinkMessage(workload.encode(), orjson.dumps(body))


flow = Dataflow("bench")
messages = op.input("telemetry", flow, KafkaSource([job["brokers"]], [job["topic"]], tail=True, batch_size=1000))
clock = win.EventClock(lambda sample: sample[0], timedelta(milliseconds=job["grace_ms"]))
windower = win.TumblingWindower(timedelta(milliseconds=job["step_ms"]), datetime(2025, 1, 1, tzinfo=UTC))
folded = win.fold_window("fold", op.filter_map("decode", messages, decode), clock, windower, begin, add, merged)
op.output("closed", op.map("encode", folded.down, encode), KafkaSink([job["brokers"]], job["out_topic"]))
run_main(flow)
