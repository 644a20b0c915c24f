"""A made-up recording through a real broker and a real worker: played, forecast, and scored against the file itself."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, TopicPartition

from agents.policy import Policy
from agents.records import ForecastRecord
from infra.console.host import free_port
from infra.demo.recording.playback import RecordingRunner
from infra.demo.recording.recordings import read_recording
from infra.demo.supervisor import Supervisor, worker_command
from infra.demo.workloads import write_settings
from infra.kafka.admin import create_topics
from infra.kafka.embedded import EmbeddedKafka
from streams.config import StreamConfig
from streams.topics import Topics

STREAM = StreamConfig(step_ms=1_000, grace_ms=1_000, skew_ms=1_000, context_steps=16)
START_S = 1_700_000_000
NUM_GPUS = 2
HORIZON = 4
# A pause longer than the context: the workload is forgotten, and comes back.
SECONDS = [*range(24), *range(60, 84)]


def made_up(path: Path) -> dict[int, float]:
    """Writes a log of 5 Hz; returns the power of the node by second: its GPUs' last readings together."""
    rng = random.Random(7)
    lines = ["timestamp,gpu,power_w,temp_c,mem_used_mib,mem_total_mib,sm_active,tensor_active"]
    power: dict[int, float] = {}
    for second in SECONDS:
        for tick in range(5):
            watts = [round(300 + 40 * rng.random(), 1) for _ in range(NUM_GPUS)]
            lines += [
                f"{START_S + second}.{2 * tick}00,{gpu},{w},40,100,200,{rng.random():.3f},0.1"
                for gpu, w in enumerate(watts)
            ]
        power[START_S + second] = sum(watts)
    path.write_text("\n".join(lines) + "\n")
    return power


def forecasts_of(bootstrap: str, topics: Topics) -> list[ForecastRecord]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topics.forecasts, p) for p in range(topics.partitions)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        found: list[ForecastRecord] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                found += [msgspec.json.decode(r.value, type=ForecastRecord) for r in records]
        return found
    finally:
        consumer.close()


@pytest.mark.slow
def test_a_recording_is_played_forecast_and_scored(
    broker: EmbeddedKafka, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "node.csv"
    power = made_up(log)
    recording = read_recording(log)
    topics = Topics(topic_prefix, 2, 16 << 20)
    create_topics(broker.bootstrap, topics.specs())
    config = tmp_path / "harmony.yaml"
    write_settings(config, Policy(fleet="test", max_horizon=HORIZON), STREAM, topics)
    monkeypatch.setenv("HARMONY_STATE_DIR", str(tmp_path))
    place = ("--brokers", broker.bootstrap, "--instance-id", "recording", "--web-port", str(free_port()))
    command = worker_command(config, *place, "--no-ticks", "--accelerated", "--end-with-parent")
    supervisor = Supervisor({"worker": command}, tmp_path / "logs")
    runner = RecordingRunner(broker.bootstrap, topics, STREAM, recording, check_alive=supervisor.check)
    supervisor.start()
    try:
        played = runner.run()
    finally:
        supervisor.stop()

    # 24 slots with data, 15 empty ones in which the workload is still remembered, and 24 again.
    assert (played.slots, played.samples) == (24 + 15 + 24, 2 * 24 * NUM_GPUS)
    assert played.tally.by_action == {"hold": played.slots}
    forecasts = forecasts_of(broker.bootstrap, topics)
    assert len(forecasts) == sum(played.scorecard.forecasts_by_source.values())
    assert {f.origin_ts_ms // 1000 - 1 for f in forecasts} >= set(power)
    assert {f.workload for f in forecasts} == {"recording/node"}

    seen = inside = first = 0
    error = last_error = 0.0
    known = sorted(power)
    for f in forecasts:
        low, middle, high = (f.quantile_levels.index(q) for q in (0.05, 0.5, 0.95))
        origin = f.origin_ts_ms // 1000 - 1
        assert len(f.targets["gpu.power_w"]) == HORIZON
        last = power[max(s for s in known if s <= origin)]
        for step, quantiles in enumerate(f.targets["gpu.power_w"], 1):
            if (value := power.get(origin + step)) is None:
                continue
            seen += 1
            first += step == 1
            inside += quantiles[low] * (1 - 1e-5) <= value <= quantiles[high] * (1 + 1e-5)
            error += abs(quantiles[middle] - value)
            last_error += abs(last - value)
    score = played.scorecard.indicators["gpu.power_w"].total
    assert (score.scores, score.first_scores, score.inside) == (seen, first, inside)
    assert seen > 100
    assert score.mae_ratio_to_last_value == pytest.approx(error / last_error, rel=1e-4)
    example = played.scorecard.indicators["gpu.power_w"].example
    assert example is not None
    assert all(value is not None for value in example.observed)
