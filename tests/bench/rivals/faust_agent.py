"""Plain Faust as its documentation teaches it: one agent, one windowed table, one event per message."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from time import monotonic, process_time

import faust
from peak import peak_mb

job = json.loads(sys.argv[1])
fields, step_ms, grace_ms, samples = job["fields"], job["step_ms"], job["grace_ms"], job["samples"]


class Sample(faust.Record, serializer="json"):
    v: int
    kind: str
    workload: str
    source: str
    ts_ms: float
    values: dict[str, float]


app = faust.App(
    job["group"], broker=f"kafka://{job['brokers']}", store="memory://", web_enabled=False,
    datadir=tempfile.mkdtemp(), consumer_auto_offset_reset="earliest", topic_partitions=job["partitions"],
)  # fmt: skip
telemetry = app.topic(job["topic"], value_type=Sample)
closed = app.topic(job["out_topic"])
outputs = 0


async def emit(key, value) -> None:
    global outputs  # noqa: PLW0603
    count = value[0]
    means = [total / count for total in value[1]]
    await closed.send(key=key[0], value={"window": key[1], "mean": means, "max": value[2], "count": count})
    outputs += 1


table = (
    app.Table("windows", default=lambda: [0, [0.0] * len(fields), [float("-inf")] * len(fields)], on_window_close=emit)
    .tumbling(step_ms, expires=grace_ms)
    .relative_to_field(Sample.ts_ms)
)
seen = 0
started = None


@app.agent(telemetry)
async def fold(stream) -> None:
    global seen, started  # noqa: PLW0603
    async for sample in stream:
        if started is None:
            started = (monotonic(), process_time())
        window = table[sample.workload]
        count, total, top = window.value()
        row = [sample.values[name] for name in fields]
        total = [a + b for a, b in zip(total, row, strict=True)]
        top = [max(a, b) for a, b in zip(top, row, strict=True)]
        table[sample.workload] = [count + 1, total, top]
        seen += 1
        if seen == samples:
            report = {
                "samples": seen, "outputs": outputs, "wall_s": monotonic() - started[0],
                "cpu_s": process_time() - started[1],
                "rss_mb": peak_mb(),
            }  # fmt: skip
            print(json.dumps(report), flush=True)
            os._exit(0)


faust.Worker(app, loglevel="error", redirect_stdouts=False, quiet=True).execute_from_commandline()
