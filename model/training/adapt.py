"""Adapting to a fleet a few steps ahead: one network learns of all items, then its head of each item alone.

What windows look like is alike in all items, and many items tell it best. Which of its values a device returns to, and
how often, is an item's own: the head learns it in seconds, from tokens that no longer change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from model.network.network import Network, with_places
from model.training.examples import History, Prepared, draw_history, joined, prepare_rows, shuffled
from model.training.loop import Progress, Trainer, TrainingOptions, prepare
from model.training.loss import LossWeights

_ONE_STEP = LossWeights(pinball=0.3, mixture=1.0, peak=0.0, copula=0.1, likelihood=0.01, atoms=0.1)
# The density of atoms teaches, but turns long before the score does.
_CRPS = LossWeights(pinball=0.0, mixture=1.0, peak=0.0, copula=0.0, likelihood=0.0, atoms=0.0)
_JUDGED_AT_ONCE = 512
_LEAST_UNIT = 1e-9

TOGETHER = TrainingOptions(
    steps=1400, learning_rate=2e-3, weight_decay=0.03, validate_every=200, patience=3, horizon=1, revisit=False,
    weights=_ONE_STEP, judge=_CRPS,
)  # fmt: skip
OWN = TrainingOptions(
    steps=280, learning_rate=2e-3, validate_every=40, patience=3, horizon=1, revisit=False, weights=_ONE_STEP,
    judge=_CRPS, part="head",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How to adapt.

    Attributes:
        together: of the network, on the windows of all items; its horizon is that of the adapted networks.
        own: of the head, on the windows of one item.
        windows: of an update, together and of one item.
    """

    together: TrainingOptions = TOGETHER
    own: TrainingOptions = OWN
    windows: tuple[int, int] = (128, 64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Windows of one item: those that teach, and those whose futures lie behind them, which judge."""

    teach: Prepared
    judge: Prepared


def fleet_rows(network: Network, history: History, train_end: int, context: int, horizon: int) -> Rows:
    """All windows of an item that have their whole context, errors measured by the spread of the rows that teach.

    Args:
        network: whose features are computed.
        history: the item's rows.
        train_end: rows before it teach, rows after it only judge.
        context: rows of context.
        horizon: steps ahead that are learned.
    """
    num = len(history.values)
    of_rows = {"context": context, "horizon": horizon}
    first = min(context, train_end - 1) - 1
    teach = prepare_rows(history, np.arange(first, train_end - 1), network.spec, last_row=train_end, **of_rows)
    judge = prepare_rows(history, np.arange(train_end - 1, num - 1), network.spec, last_row=num, **of_rows)
    spread = np.nan_to_num(np.nanstd(history.values[:train_end], axis=0)).clip(min=_LEAST_UNIT)
    unit = torch.from_numpy(spread)
    return Rows(*(replace(part, unit=unit.expand(len(part.target), -1)) for part in (teach, judge)))


def adapt_together(network: Network, rows: Sequence[Rows], options: FleetOptions) -> Network:
    """The network adapted to all items, or as it was where nothing is gained. Items share indicators and levels."""
    teach, judge = joined([item.teach for item in rows]), joined([item.judge for item in rows])
    trainer = _trainer(network, teach, judge.parts(_JUDGED_AT_ONCE), options.together, options.windows[0])
    trainer.validate()  # what comes in is the one to beat
    trainer.run()
    return trainer.best_network()


def adapt_head(network: Network, rows: Rows, options: FleetOptions) -> Network:
    """The network with a head adapted to one item and its atoms' places, or as it was where nothing is gained.

    The rows that judge say for how many updates to learn; then the head learns so long anew, of those rows, too: they
    are the newest.
    """
    network = network if network.spec.places else with_places(network)
    teach, judge = (with_tokens(some, network) for some in (rows.teach, rows.judge))
    trainer = _trainer(network, teach, judge.parts(_JUDGED_AT_ONCE), options.own, options.windows[1])
    trainer.validate()  # what comes in is the one to beat
    trainer.run()
    updates = min(trainer.history, key=lambda judged: judged[1])[0]
    again = _trainer(network, joined([teach, judge]), [], options.own, options.windows[1])
    for _ in range(updates):
        again.advance()
    return again.best_network()


def with_tokens(rows: Prepared, network: Network) -> Prepared:
    """The windows with what the network makes of their features."""
    with torch.no_grad():
        tokens = [network.tokens(part.features) for part in rows.parts(_JUDGED_AT_ONCE)]
    return replace(rows, tokens=torch.cat(tokens))


def _trainer(
    network: Network, teach: Prepared, judge: Sequence[Prepared], options: TrainingOptions, windows: int
) -> Trainer:
    learned = copy.deepcopy(network).requires_grad_()
    return Trainer(learned, shuffled([teach], windows, options.seed), judge, options)


# Adapting a network to recorded telemetry: a few updates at a low rate, judged on the newest rows.


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
