"""The forecaster of a worker as the settings choose it, on its inference thread, behind the engine that plans by it."""

from __future__ import annotations

from functools import partial

import numpy as np
import structlog
import torch

from agents.forecast_engine import Engine
from agents.hindsight import widened_futures
from agents.micro_batcher import MicroBatcher
from agents.planner import warm_up
from infra.plugins.serving import own_policy, with_own_forecaster
from infra.settings import Settings
from infra.weights_allowed import allowed_weights
from model.averages import exponential_averages
from model.inference import InferenceWorker
from model.network.serving import baselines, serving_forecaster
from model.network.serving import warm_up as warm_up_baselines
from streams.catalogue import Indicator
from streams.meter import Meter

log = structlog.get_logger(__name__)


def _warm_up_futures() -> None:
    """Compile or load what stands between forecast and plan, in the layouts that it meets there."""
    futures = widened_futures(torch.ones(1, 3, 2, 1), [2.0], torch.zeros(1), torch.ones(1))
    rows = np.zeros(1, np.float32)
    exponential_averages(futures.paths[..., 0].numpy(), rows, rows, np.empty((1, 3, 2), np.float32))


def _refused(reason: str) -> None:
    log.warning("model_refused", reason=reason)


def host_model(settings: Settings, catalogue: tuple[Indicator, ...], meter: Meter) -> tuple[InferenceWorker, Engine]:
    """The thread, to be closed by the caller, and the engine.

    A partition with more workloads than `advanced.model.max_network_workloads` is forecast by the baselines.
    """
    warm_up()
    _warm_up_futures()
    chosen, worker = settings.advanced.model, settings.worker
    ours = serving_forecaster(allowed_weights(chosen.weights, chosen.allowed_digests, _refused), _refused)
    forecaster = with_own_forecaster(settings, ours, meter)
    inference = InferenceWorker(
        forecaster, None if worker.device == "auto" else worker.device, num_threads=worker.inference_threads
    )
    if inference.device.type == "cpu":
        warm_up_baselines(ours)
    batcher, simple = (
        MicroBatcher(
            forecast,
            max_rows=worker.batch_max_workloads,
            deadline_s=worker.batch_deadline_ms / 1000,
            # Nothing is compiled, so padding rows would only cost time on a CPU.
            buckets=() if inference.device.type == "cpu" else None,
            meter=meter,
        )
        for forecast in (inference.forecast, partial(inference.forecast, forecaster=baselines()))
    )
    engine = Engine(
        forecaster,
        batcher,
        settings.policy,
        catalogue,
        settings.stream.step_ms,
        meter,
        crowd=(chosen.max_network_workloads, simple),
        proposer=own_policy(settings, meter),
        demand_alone=not settings.advanced.plugins.forecaster,
    )
    meter.gauge("model_info", 1, fingerprint=engine.fingerprint)
    return inference, engine
