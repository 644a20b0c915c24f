"""Topics that are given more partitions while workers run: said at once, before anything is read of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from agents.decide.agent import DecideStage
from agents.forecast.agent import ForecastStage
from agents.ingest import IngestStage
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.log import OtherSettings
from streams.runtime.restore import LogReader
from streams.topics import Topics

TOPICS = Topics("t.", 2)
STAGES: tuple[Any, ...] = (
    IngestStage(StreamConfig(), DEFAULT_CATALOGUE, TOPICS),
    ForecastStage(TOPICS, lambda _: cast("Any", None)),
    DecideStage(TOPICS, lambda *_: cast("Any", None)),
)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_partition_that_the_settings_do_not_know_is_refused_by_every_stage(stage: Any) -> None:
    for topic in stage.input_topics:
        known = next(spec.partitions for spec in TOPICS.specs() if spec.name == topic)
        with pytest.raises(OtherSettings, match=rf"^{topic} has been given more .* the {known} of .*state reset"):
            asyncio.run(stage.restore(topic, known, cast("LogReader", None)))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_topic_that_the_settings_do_not_know_is_named_with_the_remedy(stage: Any) -> None:
    foreign = "other.telemetry.requests"
    with pytest.raises(OtherSettings, match=rf"^{foreign} is none of the topics that start with 't\.': .*topic_prefix"):
        asyncio.run(stage.restore(foreign, 0, cast("LogReader", None)))
