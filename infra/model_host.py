"""The forecaster of a worker as the settings choose it, on its inference thread, behind the engine that plans by it."""

from __future__ import annotations

import os
from functools import partial

import structlog

from agents.forecast_engine import Engine
from agents.micro_batcher import MicroBatcher
from infra.plugins.serving import own_policy, with_own_forecaster
from infra.settings import Settings
from infra.warm_up import warm_up
from infra.weights_allowed import allowed_weights
from model.inference import InferenceWorker
from model.network.serving import baselines, worker_forecaster
from streams.catalogue import Indicator
from streams.meter import Meter

log = structlog.get_logger(__name__)
_PLAN_THREADS = 2  # of a partition each; more would only take turns at the interpreter
_MS_PER_WORKLOAD = 60  # of a step: four partitions of one worker keep a tenth of a core busy


def _refused(reason: str) -> None:
    log.warning("model_refused", reason=reason)


def host_model(settings: Settings, catalogue: tuple[Indicator, ...], meter: Meter) -> tuple[InferenceWorker, Engine]:
    """The thread, to be closed by the caller, and the engine.

    A partition with more workloads than `advanced.model.max_network_workloads` is forecast by the baselines: a window
    takes the network some 1.5 ms of a core, and slots must not wait for each other.
    """
    chosen, worker = settings.advanced.model, settings.worker
    ours = worker_forecaster(allowed_weights(chosen.weights, chosen.allowed_digests, _refused), _refused)
    forecaster = with_own_forecaster(settings, ours, meter)
    inference = InferenceWorker(
        forecaster, None if worker.device == "auto" else worker.device, num_threads=worker.inference_threads
    )
    on_cpu = inference.device.type == "cpu"
    warm_up(*([ours] if on_cpu else []))
    batcher, simple = (
        MicroBatcher(
            forecast,
            max_rows=worker.batch_max_workloads,
            deadline_s=worker.batch_deadline_ms / 1000,
            # Nothing is compiled, so padding rows would only cost time on a CPU.
            buckets=() if on_cpu else None,
            meter=meter,
            idle_at_once=on_cpu,
        )
        for forecast in (inference.forecast, partial(inference.forecast, forecaster=baselines()))
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
