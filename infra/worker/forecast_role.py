"""The forecaster of a worker as the settings choose it, on its inference thread, behind the engine that plans by it."""

from __future__ import annotations

import os
from functools import partial
from typing import Literal

import structlog
import torch

from agents.forecast.agent import ForecastStage, register_forecast_agent
from agents.forecast.batcher import MicroBatcher
from agents.forecast.engine import Engine
from agents.forecast.kernel import ForecastKernel
from agents.forecast.publish import QUANTILE_LEVELS
from agents.forecast.scoring import ForecastScorer, NaiveBaseline, SkillBoard
from agents.priority import PriorityGate
from infra.console.errors import HarmonyError
from infra.settings.load import Settings
from infra.settings.weights import allowed_weights
from infra.worker.plugins import own_policy, with_own_forecaster
from infra.worker.warm_up import warm_up
from model.inference import InferenceWorker
from model.network.forecaster import baselines, worker_forecaster
from streams.catalogue import DEFAULT_CATALOGUE, Indicator
from streams.meter import Meter
from streams.runtime.app import StageHost

log = structlog.get_logger(__name__)
_PLAN_THREADS = 2  # of a partition each; more would only take turns at the interpreter
_MS_PER_WORKLOAD = 60  # of a step: four partitions of one worker keep a tenth of a core busy


def _refused(reason: str) -> None:
    log.warning("model_refused", reason=reason)


def network_device(chosen: Literal["auto", "cpu", "cuda"]) -> torch.device | None:
    """Where the network computes, as `worker.device` says; None = on the CPU.

    Raises:
        HarmonyError: a GPU is asked for that is not there; exit code 2.
    """
    if chosen == "cuda" and not torch.cuda.is_available():
        raise HarmonyError(
            "worker.device is cuda, and torch finds no GPU here: see that `nvidia-smi` lists one and that the driver is"
            f" one for CUDA {torch.version.cuda}, or set it to auto or cpu.",
            2,
        )
    return torch.device("cuda") if chosen != "cpu" and torch.cuda.is_available() else None


def host_model(settings: Settings, catalogue: tuple[Indicator, ...], meter: Meter) -> tuple[InferenceWorker, Engine]:
    """The thread, to be closed by the caller, and the engine.

    A partition with more workloads than `advanced.model.max_network_workloads` is forecast by the baselines: a window
    takes the network some 1.5 ms of a core, and slots must not wait for each other.
    """
    chosen, worker = settings.advanced.model, settings.worker
    device = network_device(worker.device)
    ours = worker_forecaster(allowed_weights(chosen.weights, chosen.allowed_digests, _refused), _refused, device)
    forecaster = with_own_forecaster(settings, ours, meter)
    inference = InferenceWorker(forecaster, num_threads=worker.inference_threads)
    warm_up(ours)
    batcher, simple = (
        MicroBatcher(
            forecast,
            max_rows=worker.batch_max_workloads,
            deadline_s=worker.batch_deadline_ms / 1000,
            meter=meter,
            idle_at_once=at_once,  # a fuller batch saves a CPU little
        )
        for forecast, at_once in (
            (inference.forecast, device is None),
            (partial(inference.forecast, forecaster=baselines()), True),
        )
    )
    most = chosen.max_network_workloads
    engine = Engine(
        forecaster,
        batcher,
        settings.policy,
        catalogue,
        settings.stream.step_ms,
        meter,
        crowd=(settings.stream.step_ms // _MS_PER_WORKLOAD if most is None else most, simple),
        proposer=own_policy(settings, meter),
        demand_alone=not settings.advanced.plugins.forecaster,
        plan_threads=min(_PLAN_THREADS, os.cpu_count() or 1),
    )
    meter.gauge("model_info", 1, fingerprint=engine.fingerprint)
    return inference, engine


# The forecast role of a worker: the model on its thread, and a kernel of stage 2 for each partition.


class ForecastRole:
    """Everything of a worker that only this role needs.

    Attributes:
        stage: stage 2.
    """

    def __init__(self, settings: Settings, meter: Meter, precedence: PriorityGate) -> None:
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
