"""Adapting a network to recorded telemetry: a few updates at a low rate, judged on the newest rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

from model.network.history import History, draw_history
from model.network.network import Network
from model.training.examples import Prepared
from model.training.loop import Progress, Trainer, TrainingOptions, prepare

ADAPT = TrainingOptions(steps=300, learning_rate=3e-4, validate_every=25, patience=4)
_CONTEXT = 2048
_VALIDATION = 16
_MIN_ROWS = 64


class TooShortError(ValueError):
    """Not enough rows to learn from and to judge by."""


def adaptation(
    network: Network,
    histories: Sequence[History],
    options: TrainingOptions = ADAPT,
    *,
    train_ends: Sequence[int] | None = None,
    context: int = _CONTEXT,
    start: int = 0,
) -> Trainer:
    """A training run on recorded rows; the best network so far may be the one that came in.

    Args:
        network: copied, not changed.
        histories: recorded items.
        train_ends: per item, rows before it are learned from, rows after it only judge; default: the first 80 %.
        context: most rows of context.
        start: step to start at, when a run is taken up again.

    Raises:
        TooShortError: fewer than 64 rows to learn from in every item.
    """
    items = list(histories)
    ends = [int(0.8 * len(h.values)) for h in items] if train_ends is None else list(train_ends)
    if not items or max(ends) < _MIN_ROWS:
        raise TooShortError(
            f"adapting needs at least {_MIN_ROWS} rows to learn from, beside those that judge; the longest series has "
            f" {max((len(h.values) for h in items), default=0)}"
        )

    def examples() -> Iterator[Prepared]:
        number = start
        while True:
            yield prepare(draw_history(items, options.seed * 1_000_000 + number, context, ends), network.spec)
            number += 1

    trainer = Trainer(copy.deepcopy(network), examples(), _newest(network, items, ends, context), options)
    trainer.validate()  # what comes in is the one to beat
    return trainer


def adapt(
    network: Network,
    histories: Sequence[History],
    options: TrainingOptions = ADAPT,
    *,
    train_ends: Sequence[int] | None = None,
    context: int = _CONTEXT,
    on_progress: Callable[[Progress], None] | None = None,
    deadline_s: float | None = None,
) -> Network:
    """The network adapted to recorded rows (see `adaptation`), or as it was where nothing is gained.

    Raises:
        TooShortError: too few rows.
    """
    trainer = adaptation(network, histories, options, train_ends=train_ends, context=context)
    trainer.run(on_progress, deadline_s)
    return trainer.best_network()


def _newest(network: Network, items: list[History], ends: list[int], context: int) -> list[Prepared]:
    """Contexts whose futures lie behind the rows that are learned from."""
    out = []
    for number in range(_VALIDATION):
        item = items[number % len(items)]
        end = ends[number % len(items)]
        example = draw_history([item], 500_000_000 + number, context, [len(item.values)], first_row=end - 1)
        out.append(prepare(example, network.spec))
    return out
