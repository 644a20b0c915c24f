"""Settings that change under existing state."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from streams.config import StreamConfig
from tests.faults.kept_state import Copy, configure, goes_on, refusal, write_log
from tests.faults.logs import ends_of, read_log
from tests.integration.pipeline import PARTITIONS, STREAM, Pipeline, stop

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("role", "stream", "says"),
    [
        ("ingest", dataclasses.replace(STREAM, step_ms=10_000), "step_ms 5000, the settings say 10000"),
        ("forecast", dataclasses.replace(STREAM, step_ms=10_000), "step 5000 ms and grace 5000 ms"),
        ("decide", dataclasses.replace(STREAM, step_ms=10_000), "has a step of 5000 ms"),
        ("all", dataclasses.replace(STREAM, grace_ms=4_000), "grace 5000 ms, the configuration says 5000 and 4000"),
    ],
)
def test_another_step_or_grace_is_refused_by_every_stage(
    state: Pipeline, role: str, stream: StreamConfig, says: str
) -> None:
    code, last = refusal(state, stream=stream, role=role)
    assert code == 2
    assert says in last
    assert "`harmony state reset`" in last


def test_another_partition_count_is_refused(state: Pipeline, copy: Copy) -> None:
    wanted = dataclasses.replace(state.topics, partitions=4)
    code, last = refusal(state, topics=wanted)
    assert code == 2
    assert "`harmony state reset`" in last
    assert "partitions is 2, wanted 4" in last
    # The same with topics that somebody has enlarged: the pages know.
    grown = copy()
    admin = KafkaAdminClient(bootstrap_servers=state.bootstrap)
    names = [spec.name for spec in grown.topics.specs() if spec.partitions == PARTITIONS]
    admin.create_partitions(dict.fromkeys(names, 4))
    admin.close()
    deadline = monotonic() + 30
    while set(map(len, (ends_of(state.bootstrap, name) for name in names))) != {4}:
        assert monotonic() < deadline
        sleep(0.3)
    code, last = refusal(grown, topics=dataclasses.replace(grown.topics, partitions=4))
    assert code == 2
    assert "partition count 2, the settings say 4" in last
    assert "`harmony state reset`" in last


@pytest.mark.parametrize("role", ["all", "forecast"])
def test_another_fleet_name_is_refused(state: Pipeline, role: str) -> None:
    code, last = refusal(state, fleet="another", role=role)
    assert code == 2
    assert "the state of fleet 'test'" in last


@pytest.mark.parametrize("context_steps", [16, 40])
def test_another_context_length_rebuilds_the_rings(copy: Copy, context_steps: int, tmp_path: Path) -> None:
    """Afterwards a forecast is the one of a worker that has had this length from the beginning.

    But for its width: intervals are widened by what forecasts have missed, and the earlier ones had another length.
    """
    changed = copy()
    stream = dataclasses.replace(STREAM, context_steps=context_steps)
    configure(changed, stream, None)
    goes_on(changed, 1)
    calm = Pipeline(changed.bootstrap, f"calm-{changed.topics.prefix}", tmp_path / "calm", changed.workloads)
    configure(calm, stream, None)
    write_log(calm, calm.topics.pages, read_log(changed.bootstrap, changed.topics.pages))
    origin = changed.slot * STREAM.step_ms
    wanted = forecasts_at(changed, origin)
    assert len(wanted) == len(changed.workloads)
    with calm.worker(role="forecast"):
        deadline = monotonic() + 120
        while len(forecasts_at(calm, origin)) < len(wanted):
            assert monotonic() < deadline, calm.log_of()[-3000:]
            sleep(0.5)
    found = forecasts_at(calm, origin)
    assert found.keys() == wanted.keys()
    for workload, forecast in wanted.items():
        assert same_but_for_width(found[workload], forecast)


def same_but_for_width(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether each step has the same median, and the distances above it grew by one factor."""
    median, high = one["quantile_levels"].index(0.5), one["quantile_levels"].index(0.9)
    factors = []
    for name, steps in one["targets"].items():
        for mine, theirs in zip(steps, other["targets"][name], strict=True):
            spread = theirs[high] - theirs[median]
            if mine[median] != pytest.approx(theirs[median], rel=1e-4, abs=1e-3 * spread):
                print(f"{name}: median {mine[median]} instead of {theirs[median]}, spread {spread}")
                return False
            if spread > 0:
                factors.append((mine[high] - mine[median]) / spread)
    bare = ("targets", "peaks")
    print(f"widened by {min(factors):.4f} to {max(factors):.4f}")
    same = {k: v for k, v in one.items() if k not in bare} == {k: v for k, v in other.items() if k not in bare}
    return same and min(factors) == pytest.approx(max(factors), rel=1e-2)


def forecasts_at(pipeline: Pipeline, origin_ts_ms: int) -> dict[str, Any]:
    bodies = [json.loads(value) for *_, value in pipeline.log(pipeline.topics.forecasts) if value is not None]
    return {b["workload"]: b for b in bodies if b["origin_ts_ms"] == origin_ts_ms}


def test_other_indicators_are_matched_by_name(copy: Copy) -> None:
    changed = copy()
    launcher = Path(__file__).with_name("other_catalogue.py")
    command = [
        sys.executable, str(launcher), "worker", "--config", str(changed.config), "--brokers", changed.bootstrap,
        "--instance-id", "w0", "--web-port", "0", "--no-ticks", "--accelerated", "--end-with-parent",
    ]  # fmt: skip
    environment = {
        **os.environ, "HARMONY_STATE_DIR": str(changed.home), "PYTHONPATH": str(launcher.parents[2]),
    }  # fmt: skip
    with (changed.home / "w0.log").open("ab") as log:
        worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        origin = changed.publish_slots(2)
        changed.wait_for_decisions(origin, 120)
    finally:
        stop(worker)
    forecasts = forecasts_at(changed, origin)
    assert all("request.arrival_rate" in body["targets"] for body in forecasts.values())
    assert all("request.prompt_token_rate" not in body["targets"] for body in forecasts.values())
    assert len(forecasts) == len(changed.workloads)
