"""Real time, as in production: publishers that know nothing of ticks, and a worker that closes slots by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep, time

import msgspec

from agents.records import Decision
from infra.console.host import free_port
from infra.demo.supervisor import worker_command
from infra.kafka.embedded import EmbeddedKafka
from streams.catalogue import SOURCES
from streams.config import StreamConfig
from streams.records.schema import encode_sample
from tests.faults.logs import Entry, read_log
from tests.integration.pipeline import PARTITIONS, Pipeline, stop, workload_names

STREAM = StreamConfig(step_ms=1_000, grace_ms=1_500, skew_ms=1_000, context_steps=16)


_STEADY_SLOTS = 8


def _read(entry: Entry) -> Decision:
    return msgspec.json.decode(entry.value or b"", type=Decision)


@contextmanager
def ticking_worker(pipeline: Pipeline) -> Iterator[None]:
    command = worker_command(
        pipeline.config, "--brokers", pipeline.bootstrap, "--instance-id", "live",
        "--web-port", str(free_port()), "--end-with-parent",
    )  # fmt: skip
    environment = {**os.environ, "HARMONY_STATE_DIR": str(pipeline.home)}
    with (pipeline.home / "live.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:
        stop(process)


def test_ticks_close_slots_in_real_time_even_where_a_source_is_silent(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(broker.bootstrap, topic_prefix, tmp_path, workload_names(2), stream=STREAM)
    topics = pipeline.topics
    loud, quiet = pipeline.workloads
    started = 0
    published: list[int] = []

    def publish() -> None:
        nonlocal started
        started += 3
        now_ms = int(time() * 1000)
        value = encode_sample("requests", loud, "r0", now_ms, {"requests_started_total": float(started)})
        pipeline.producer.send(topics.telemetry_requests, key=loud.encode(), value=value)
        # GPU telemetry never comes: its partitions live by ticks alone.
        published.append(now_ms)

    def decisions() -> list[Decision]:
        return [msgspec.json.decode(v or b"", type=Decision) for *_, v in pipeline.log(topics.decisions)]

    def silent_pages() -> int:
        pages = [p for p, _, key, _ in pipeline.log(topics.pages) if (key or b"")[0] == SOURCES.index("gpu")]
        return min((pages.count(p) for p in range(PARTITIONS)), default=0)

    with ticking_worker(pipeline):
        deadline = monotonic() + 90
        # Three closed slots of both sources in every partition, of which most never see a sample.
        while pipeline.count(topics.pages) < 3 * 2 * PARTITIONS or len(decisions()) < 5 or silent_pages() < 2:
            assert monotonic() < deadline, pipeline.log_of("live")[-3000:]
            publish()
            sleep(0.2)
        behind = len(decisions())  # those of slots from before it was at work
        while len(decisions()) < behind + _STEADY_SLOTS:
            assert monotonic() < deadline, pipeline.log_of("live")[-3000:]
            publish()
            sleep(0.2)
    found = decisions()
    assert {d.workload for d in found} <= {loud, quiet}
    assert {d.action for d in found} == {"hold"}
    origins = sorted(d.origin_ts_ms for d in found if d.workload == loud)
    assert origins == list(range(origins[0], origins[-1] + 1, STREAM.step_ms))
    assert all(t % STREAM.step_ms == 0 for t in origins)
    # No slot closed before its samples could be there: nothing was late.
    assert b"late" not in b"".join(v or b"" for *_, v in pipeline.log(topics.dead_letters))
    stamps = {p for p, *_ in pipeline.log(topics.pages)}
    assert stamps == set(range(PARTITIONS))
    # A tick is sent when grace and skew are over, so a decision waits for nothing else. The machine may be busy.
    decided = [(d.origin_ts_ms, e.stamp_ms) for e in read_log(broker.bootstrap, topics.decisions) for d in [_read(e)]]
    delays = sorted(stamp_ms - origin_ms for origin_ms, stamp_ms in sorted(decided)[-_STEADY_SLOTS:])
    print(f"decisions {delays} ms after the end of their slot")
    assert delays[0] >= STREAM.grace_ms
    assert delays[len(delays) // 4] <= STREAM.grace_ms + STREAM.skew_ms + 300
