"""The kernels that plan and decide for one partition, with a forecaster that a worker can serve without weights."""

from __future__ import annotations

from collections.abc import Sequence

from agents.decide.kernel import DecideKernel
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.publish import QUANTILE_LEVELS
from agents.forecast.scoring import ForecastScorer, NaiveBaseline, SkillBoard
from agents.policy import WorkloadSpec
from infra.lab.bench.live_loop import policy_of
from infra.worker.warm_up import warm_up
from model.inference import InferenceWorker
from model.network.forecaster import baselines
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.log import Emission, LogRecord
from streams.meter import NullMeter
from streams.topics import Topics


class Planning:
    """Stages 2 and 3 of one partition as a worker has them, forecasts by the baselines; `close` it.

    Attributes:
        forecast, decide: the kernels.
    """

    def __init__(self, specs: Sequence[WorkloadSpec], stream: StreamConfig, topics: Topics) -> None:
        policy = policy_of(specs)
        forecaster, meter = baselines(), NullMeter()
        warm_up(forecaster)
        self._inference = InferenceWorker(forecaster)
        batcher = MicroBatcher(self._inference.forecast)
        engine = Engine(forecaster, batcher, policy, DEFAULT_CATALOGUE, stream.step_ms, meter)
        baseline = NaiveBaseline(DEFAULT_CATALOGUE, stream.step_ms, QUANTILE_LEVELS)
        scorer = ForecastScorer(SkillBoard(QUANTILE_LEVELS), baseline, meter)
        self.forecast = ForecastKernel(0, stream, DEFAULT_CATALOGUE, topics, policy, engine, meter, scorer)
        self.decide = DecideKernel(policy, stream, topics)
        self._topic = topics.plans
        self._read = 0

    def plans_of(self, emissions: Sequence[Emission], stamp_ms: int) -> list[LogRecord]:
        """Plans among what stage 2 emitted, as stage 3 reads them."""
        outs = [out for e in emissions for group in e.outputs for out in group if out.topic == self._topic]
        self._read += len(outs)
        return [LogRecord(self._read - len(outs) + k, stamp_ms, out.key, out.value) for k, out in enumerate(outs)]

    def close(self) -> None:
        """Stop the thread that forecasts."""
        self._inference.close()
