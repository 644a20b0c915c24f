"""The network adapted to a task's own rows before its test part: a contestant of the rolling protocol, track local."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model.contract import Forecaster
from model.evaluation.dataset import Task
from model.evaluation.rolling import Paths, Round
from model.evaluation.served import rolling_contestant
from model.network.adapt import TooShortError, adapt
from model.network.history import History
from model.network.network import Network
from model.network.training import TrainingOptions

OPTIONS = TrainingOptions(steps=80, learning_rate=2e-4, validate_every=16, patience=3)


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


def _adapted(network: Network, task: Task, options: TrainingOptions, context: int) -> Network:
    try:
        return adapt(
            network, histories(task), options, train_ends=[item.train_end for item in task.items], context=context
        )
    except TooShortError:
        return network
