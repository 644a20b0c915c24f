"""The network adapted to the rows before the test part: a contestant of Fisher, and of the rolling protocol, local."""

from __future__ import annotations

import copy
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
from model.training.adapt import FleetOptions, adapt_head, adapt_together, fleet_rows
from model.training.loop import TrainingOptions

OPTIONS = TrainingOptions(steps=80, learning_rate=2e-4, validate_every=16, patience=3)
ONE_STEP = FleetOptions()
Serve = Callable[[Network], Forecaster]


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


class Adapted:
    """A network adapted once to each task, or to all containers and then its head to each of them.

    Train rows teach, validation rows judge (and then teach the heads, for as long as they found best), test rows are
    unseen.

    Contestants that serve it in different ways share what was learned; the time is the first one's.

    Args:
        network: what adaptation starts from; not changed.
        fine_rows: rows of context in the rolling protocol, the same for learning and forecasting.
        options: of learning for the rolling protocol.
        one_step: of learning for Fisher's.
    """

    def __init__(
        self,
        network: Network,
        fine_rows: int,
        options: TrainingOptions = OPTIONS,
        one_step: FleetOptions = ONE_STEP,
    ) -> None:
        self._network = network
        self._fine_rows = fine_rows
        self._options = options
        self._one_step = one_step
        self._tasks: dict[str, Network] = {}
        self._containers: dict[tuple[str, int], Network] = {}

    def rolling_contestant(self, serve: Serve) -> Callable[[Round], Paths]:
        """Forecasts of the network adapted to the round's task; `serve` makes a forecaster of a network.

        On track zeroshot, where nothing may be fitted, and where a task is too short, the network stays as it was.
        """
        made: dict[str, Callable[[Round], Paths]] = {}

        def answer(asked: Round) -> Paths:
            task = asked.task.name
            if task not in made:
                made[task] = rolling_contestant(serve(self._of_task(asked)), self._fine_rows)
            return made[task](asked)

        return answer

    def fisher_contestant(self, serve: Serve) -> Callable[[Asked], Answer]:
        """Forecasts of the network adapted to the containers of the run at this input length, and to this one."""

        def answer(asked: Asked) -> Answer:
            return fisher_contestant(serve(self._of_container(asked)))(asked)

        return answer

    def _of_task(self, asked: Round) -> Network:
        name = asked.task.name
        if name not in self._tasks:
            # A copy: whoever serves a network freezes it, and the next adaptation could not learn.
            self._tasks[name] = self._learned(asked) or copy.deepcopy(self._network)
        return self._tasks[name]

    def _learned(self, asked: Round) -> Network | None:
        task = asked.task
        if asked.track == "zeroshot":
            return None
        ends = [item.train_end for item in task.items]
        try:
            return adapt(self._network, histories(task), self._options, train_ends=ends, context=self._fine_rows)
        except TooShortError:
            return None

    def _of_container(self, asked: Asked) -> Network:
        key = asked.name, asked.length
        if key not in self._containers:
            fleet = [other for other in asked.beside if other.names == asked.names] or [asked]
            rows = [
                fleet_rows(self._network, _history(one), one.num_train, one.length, self._one_step.together.horizon)
                for one in fleet
            ]
            together = adapt_together(self._network, rows, self._one_step)
            for one, of in zip(fleet, rows, strict=True):
                self._containers[one.name, one.length] = adapt_head(together, of, self._one_step)
        return self._containers[key]


def _history(asked: Asked) -> History:
    """The rows of a container before its test part."""
    n = len(asked.names)
    return History(
        item_id=asked.name,
        start_ts_ms=asked.start_ts_ms,
        step_ms=COARSE_STEP_MS,
        values=asked.scaled[: asked.num_train + len(asked.validation)],
        levels=np.array(indicator_levels(asked.names), dtype=np.int64),
        names=asked.names,
        lower=np.full(n, -np.inf),
        upper=np.full(n, np.inf),
    )
