"""Quix Streams as its documentation teaches it: a tumbling window per key, kept in RocksDB with a changelog topic."""

from __future__ import annotations

import json
import sys
import tempfile

from quixstreams import Application
from stopwatch import Stopwatch

job = json.loads(sys.argv[1])
fields = job["fields"]
watch = Stopwatch(job["samples"])


def first(message: dict) -> list:
    values = [message["values"][name] for name in fields]
    return [1, values, values]


def add(window: list, message: dict) -> list:
    values = [message["values"][name] for name in fields]
    return [
        window[0] + 1,
        [a + b for a, b in zip(window[1], values, strict=True)],
        [max(a, b) for a, b in zip(window[2], values, strict=True)],
    ]


def means(window: dict) -> dict:
    watch.outputs += 1
    count, total, top = window["value"]
    return {"window": window["start"], "mean": [x / count for x in total], "max": top, "count": count}


def counted(message: dict) -> bool:
    if "values" not in message:
        return False
    watch.count()
    return True


app = Application(
    broker_address=job["brokers"], consumer_group=job["group"], auto_offset_reset="earliest",
    state_dir=tempfile.mkdtemp(), loglevel="ERROR",
)  # fmt: skip
telemetry = app.topic(job["topic"], value_deserializer="json", timestamp_extractor=lambda value, *_: value["ts_ms"])
closed = app.topic(job["out_topic"], value_serializer="json")
flow = app.dataframe(telemetry).filter(counted)
flow = flow.tumbling_window(duration_ms=job["step_ms"], grace_ms=job["grace_ms"]).reduce(reducer=add, initializer=first)
flow.final(closing_strategy="partition").apply(means).to_topic(closed)
app.run()
