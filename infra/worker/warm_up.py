"""Compile or load what a worker runs before it joins, so that no slot waits for it; images do so when being built."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import structlog

from agents.planning import planner
from infra.console.host import watch_parent
from model import compiled
from model import numerics as digits
from model import numerics as widening
from model.bursts import kernel as surge_chains
from model.bursts import kernel as unfelt_steps
from model.bursts.mixes import work_paths
from model.calibration import risk as window_tallies
from model.capacity.law import EngineLaw, EngineSlot
from model.contract import Forecaster
from model.network import forecaster as serving
from model.numerics import decayed_mean, exponential_averages
from streams.ingest.warm_up import warm_up as warm_up_ingest

log = structlog.get_logger(__name__)
# The wheel calls these modules `harmony.infra...`.
_HALF = f"""
from {watch_parent.__module__} import watch_parent
watch_parent()
from {__package__} import warm_up
warm_up.{{half}}()
"""


def warm_up(*forecasters: Forecaster) -> None:
    """The planner, what stands between it and a forecast, the baselines, and the forecasters that are named.

    Compiling takes more than a minute of one core, the first time.
    """
    with compiled.completing() as missing:
        if missing:
            _compile_all()
    warm_up_plans()
    serving.warm_up(*forecasters)


def _compile_all() -> None:
    """Compile in processes of their own: a compiler leaves hundreds of megabytes to the process that it ran in.

    Where one of them fails, its half is compiled here.
    """
    log.info("compiling", note="loops of forecasts and plans: a minute, once per version")
    running = {}
    for compile_half in (warm_up_plans, warm_up_forecasters):
        code = _HALF.format(half=compile_half.__name__)
        running[compile_half] = subprocess.Popen([sys.executable, "-c", code])
        if (os.cpu_count() or 1) == 1:
            running[compile_half].wait()
    for compile_half, process in running.items():
        if process.wait() != 0:
            compile_half()


def warm_up_forecasters() -> None:
    """Those of the package; the baselines alone where its weights are refused, of which a worker says why."""
    serving.warm_up(serving.serving_forecaster())


def warm_up_plans() -> None:
    """The planner, and what stands between it and a forecast."""
    planner.warm_up()
    window_tallies.warm_up()
    unfelt_steps.warm_up_outliers()
    surge_chains.warm_up()
    digits.warm_up_digits()
    widening.warm_up_widening()
    rows, paths = np.zeros(1, np.float32), np.zeros((1, 2, 3), np.float32)
    exponential_averages(paths, rows, rows, np.empty_like(paths))
    decayed_mean(np.ones((2, 1), np.float32), np.ones((2, 1), np.bool_), 0, 0.1)
    _warm_up_law()


def _warm_up_law() -> None:
    """What a plan asks of an engine's law: enough slots for a mix, and ten-minute means whose mixes differ."""
    law = EngineLaw(0.1, 1.0, 1.3)
    for _ in range(40):
        law.observe(EngineSlot(15.0, 1, 8.0, 4_000.0, 800.0, 8.0, 0.0, 0.3))
    means = np.full((4, 3), (8.0, 4_000.0, 800.0), np.float32)
    means[0] *= (1.0, 4.0, 4.0)
    paths = work_paths(law, means, np.ones((4, 3), np.bool_), "warm-up", 0, 15.0, (2, 2))
    assert paths is not None
    assert law.tested_ratio > 0.0


if __name__ == "__main__":
    began = time.perf_counter()
    warm_up_ingest()
    warm_up()
    print(f"compiled or loaded what a worker runs in {time.perf_counter() - began:.1f} s")
