"""The network adapted to the rows before the test part: a contestant of Fisher, and of the rolling protocol, local."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.contract import COARSE_STEP_MS, Forecaster
from model.evaluation.dataset import Task
from model.evaluation.fisher import Answer, Asked, indicator_levels
from model.evaluation.rolling import Paths, Round
from model.evaluation.served import fisher_contestant, rolling_contestant
from model.network.adapt import TooShortError, adapt
from model.network.history import History
from model.network.network import Network
from model.network.training import TrainingOptions

OPTIONS = TrainingOptions(steps=80, learning_rate=2e-4, validate_every=16, patience=3)
ONE_STEP = TrainingOptions(steps=200, learning_rate=4e-4, validate_every=20, patience=4, horizon=1)


def histories(task: Task) -> list[History]:
    """The rows of every item before its test part."""
    return [
        History(
            item_id=item.item_id,
            start_ts_ms=item.start_ts_ms,
            step_ms=round(1000 * task.step_s),
            values=item.values[: item.test_start],
            levels=np.array([indicator.level for indicator in task.indicators], dtype=np.int64),
            names=task.names,
            lower=task.lower,
            upper=task.upper,
        )
        for item in task.items
    ]


def adapted_contestant(
    network: Network,
    serve: Callable[[Network], Forecaster],
    fine_rows: int,
    options: TrainingOptions = OPTIONS,
) -> Callable[[Round], Paths]:
    """The network, adapted once per task: train rows teach, validation rows judge, test rows are never seen.

    Args:
        network: what adaptation starts from.
        serve: makes a forecaster of an adapted network.
        fine_rows: rows of context, the same for learning and forecasting.

    On track zeroshot, where nothing may be fitted, it stays as it is.
    """
    made: dict[str, Callable[[Round], Paths]] = {}

    def answer(asked: Round) -> Paths:
        task = asked.task
        if task.name not in made:
            better = network if asked.track == "zeroshot" else _adapted(network, task, options, fine_rows)
            made[task.name] = rolling_contestant(serve(better), fine_rows)
        return made[task.name](asked)

    return answer


def fisher_adapted_contestant(
    network: Network, serve: Callable[[Network], Forecaster], options: TrainingOptions = ONE_STEP
) -> Callable[[Asked], Answer]:
    """The network, adapted to each container and input length: train rows teach, validation rows judge."""

    def answer(asked: Asked) -> Answer:
        rows = asked.scaled[: asked.num_train + len(asked.validation)]
        n = len(asked.names)
        history = History(
            item_id=asked.name,
            start_ts_ms=asked.start_ts_ms,
            step_ms=COARSE_STEP_MS,
            values=rows,
            levels=np.array(indicator_levels(asked.names), dtype=np.int64),
            names=asked.names,
            lower=np.full(n, -np.inf),
            upper=np.full(n, np.inf),
        )
        better = adapt(network, [history], options, train_ends=[asked.num_train], context=asked.length)
        return fisher_contestant(serve(better))(asked)

    return answer


def _adapted(network: Network, task: Task, options: TrainingOptions, context: int) -> Network:
    try:
        return adapt(
            network, histories(task), options, train_ends=[item.train_end for item in task.items], context=context
        )
    except TooShortError:
        return network
