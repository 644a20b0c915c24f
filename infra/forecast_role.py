"""The forecast role of a worker: the model on its thread, and a kernel of stage 2 for each partition."""

from __future__ import annotations

from agents.forecast.agent import ForecastStage, register_forecast_agent
from agents.forecast.kernel import ForecastKernel
from agents.forecast.publish import QUANTILE_LEVELS
from agents.forecast.scoring import ForecastScorer, NaiveBaseline, SkillBoard
from agents.priority import Precedence
from infra.settings.load import Settings
from infra.worker.forecast_role import host_model
from streams.catalogue import DEFAULT_CATALOGUE
from streams.meter import Meter
from streams.runtime.app import StageHost


class ForecastRole:
    """Everything of a worker that only this role needs.

    Attributes:
        stage: stage 2.
    """

    def __init__(self, settings: Settings, meter: Meter, precedence: Precedence) -> None:
        self._inference, engine = host_model(settings, DEFAULT_CATALOGUE, meter)
        board = SkillBoard(QUANTILE_LEVELS)
        baseline = NaiveBaseline(DEFAULT_CATALOGUE, settings.stream.step_ms, QUANTILE_LEVELS)

        def new_kernel(partition: int) -> ForecastKernel:
            return ForecastKernel(
                partition,
                settings.stream,
                DEFAULT_CATALOGUE,
                settings.topics,
                settings.policy,
                engine,
                meter,
                ForecastScorer(board, baseline, meter),
                precedence,
            )

        self.stage = ForecastStage(settings.topics, new_kernel)

    def register(self, host: StageHost) -> None:
        """Declare the agent of the stage."""
        register_forecast_agent(host, self.stage)

    def close(self) -> None:
        """End the model's thread."""
        self._inference.close()
