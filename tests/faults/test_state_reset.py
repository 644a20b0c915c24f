"""`harmony state reset`: what it refuses, empties and makes anew."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from time import monotonic, sleep

import pytest
from kafka.admin import KafkaAdminClient

from infra.kafka.admin import create_topics
from infra.settings.load import load_settings
from tests.faults.kept_state import Copy, configure, goes_on
from tests.faults.logs import ends_of
from tests.integration.pipeline import PARTITIONS, STREAM, Pipeline

pytestmark = pytest.mark.faults


def harmony(pipeline: Pipeline, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra", *arguments, "--config", str(pipeline.config)]
    environment = {**os.environ, "HARMONY_STATE_DIR": str(pipeline.home), "HARMONY_BROKERS": pipeline.bootstrap}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def test_state_reset_refuses_while_a_worker_lives_and_empties_everything_after(copy: Copy) -> None:
    pipeline = copy()
    topics = pipeline.topics
    internal = (topics.pages, topics.pages_coarse, topics.plans, topics.commits)

    def held() -> dict[str, int]:
        return {name: pipeline.count(name) for name in internal}

    with pipeline.worker():
        pipeline.wait_for_decisions(pipeline.publish_slots(1), 120)
        refused = harmony(pipeline, "state", "reset", "--yes")
        assert refused.returncode == 1
        assert "Workers are alive in the group: w0" in refused.stderr
    deadline = monotonic() + 60
    while "Workers are alive" in (dry := harmony(pipeline, "state", "reset", "--dry-run")).stderr:
        assert monotonic() < deadline
        sleep(1)
    before = held()
    assert dry.returncode == 0
    assert before[topics.pages]
    assert before[topics.plans]
    assert before[topics.commits]
    assert f"{topics.pages}: {before[topics.pages]} records" in dry.stderr
    assert held() == before, "a dry run deletes nothing"
    unasked = harmony(pipeline, "state", "reset")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    done = harmony(pipeline, "state", "reset", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["dry_run"], answer["records"]) == (False, sum(before.values()))
    assert not any(held().values())
    assert load_settings(pipeline.config).policy.epoch == answer["epoch"] == 2
    decided = pipeline.count(topics.decisions)
    goes_on(pipeline, 1)
    assert pipeline.count(topics.decisions) > decided
    commands = [json.loads(value) for *_, value in pipeline.log(topics.commands) if value is not None]
    assert {c["epoch"] for c in commands} <= {1, 2}


def test_state_reset_makes_internal_topics_anew_for_another_partition_count(copy: Copy) -> None:
    pipeline = copy()
    wanted = dataclasses.replace(pipeline.topics, partitions=3)
    admin = KafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    public = [spec.name for spec in pipeline.topics.specs() if spec.partitions == PARTITIONS]
    internal = {wanted.pages, wanted.pages_coarse, wanted.commits}
    admin.create_partitions({name: 3 for name in public if name not in internal})
    admin.close()
    configure(pipeline, STREAM, wanted)
    done = harmony(pipeline, "state", "reset", "--yes")
    assert done.returncode == 0, done.stderr
    assert {name: len(ends_of(pipeline.bootstrap, name)) for name in internal} == dict.fromkeys(internal, 3)
    assert create_topics(pipeline.bootstrap, wanted.specs()) == ()
    with pipeline.worker() as worker:
        deadline = monotonic() + 60
        while not pipeline.count(wanted.pages):
            assert worker.poll() is None, pipeline.log_of()[-3000:]
            assert monotonic() < deadline, pipeline.log_of()[-3000:]
            sleep(0.5)
