"""State that a pipeline has left, copies of it with changed logs, and what a worker makes of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from infra.demo.workloads import write_settings
from streams.config import StreamConfig
from streams.topics import Topics
from tests.faults.logs import Entry, read_log
from tests.integration.pipeline import STREAM, Pipeline, policy_for, stop, workload_names

SLOTS = 44
STATE = ("telemetry_gpu", "telemetry_requests", "pages", "pages_coarse", "plans", "commits", "decisions", "commands")
Change = Callable[[list[Entry]], list[Entry]]
Copy = Callable[..., Pipeline]


def kept(bootstrap: str, home: Path) -> Pipeline:
    """A pipeline whose worker has ended after 44 slots; nobody may write to its topics."""
    pipeline = Pipeline(bootstrap, "state.", home, workload_names(2))
    with pipeline.worker():
        origin = pipeline.publish_slots(SLOTS)
        pipeline.wait_for_decisions(origin, 400)
    return pipeline


def copied(state: Pipeline, home: Path, changes: Mapping[str, Change]) -> Pipeline:
    """The same logs, offsets included, under other names; a change may be made to the records of some."""
    pipeline = Pipeline(state.bootstrap, f"copy-{os.urandom(4).hex()}.", home, state.workloads)
    pipeline.slot = state.slot
    pipeline._counters = {key: list(values) for key, values in state._counters.items()}
    for name in STATE:
        entries = read_log(state.bootstrap, getattr(state.topics, name))
        write_log(pipeline, getattr(pipeline.topics, name), changes.get(name, list)(entries))
    return pipeline


def write_log(pipeline: Pipeline, topic: str, entries: Sequence[Entry]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=pipeline.bootstrap,
        acks="all",
        max_in_flight_requests_per_connection=1,
        max_request_size=2 << 20,
    )
    for e in entries:
        producer.send(topic, key=e.key, value=e.value, partition=e.partition, headers=list(e.headers))
    producer.flush(60)
    producer.close()


def append(partition: int, key: bytes | None, value: bytes) -> Change:
    return lambda entries: [*entries, Entry(partition, 0, 0, key, value, ())]


def refusal(
    pipeline: Pipeline,
    *,
    stream: StreamConfig = STREAM,
    topics: Topics | None = None,
    role: str = "all",
    **policy: Any,
) -> tuple[int, str]:
    """Exit code and last line of a worker that must not go on."""
    configure(pipeline, stream, topics, **policy)
    before = len(pipeline.log_of()) if (pipeline.home / "w0.log").exists() else 0
    worker = pipeline.start_worker(role=role)
    try:
        code = worker.wait(240)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it goes on\n{pipeline.log_of()[-3000:]}")
    finally:
        if worker.poll() is None:
            stop(worker)
        configure(pipeline, STREAM, None)
    said = pipeline.log_of()[before:]
    assert "Traceback" not in said, said
    last = said.rstrip().rsplit("\n", 1)[-1]
    print(f"exit code {code}: {last}")
    return code, last


def configure(pipeline: Pipeline, stream: StreamConfig, topics: Topics | None, **policy: Any) -> None:
    made = dataclasses.replace(policy_for(pipeline.workloads), **policy)
    write_settings(pipeline.config, made, stream, topics or pipeline.topics)


def goes_on(pipeline: Pipeline, slots: int = 2) -> str:
    """A worker takes up the state and decides further slots; what it said."""
    with pipeline.worker():
        pipeline.wait_for_decisions(pipeline.publish_slots(slots), 240)
    return pipeline.log_of()
