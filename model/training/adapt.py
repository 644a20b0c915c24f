"""Fine-tuning of a network: to a fleet of items, then its head to each item, or the whole to recorded series.

Windows look alike in all items, so all items train the network together. To which values a device returns differs by
item. The head learns that in seconds, from tokens that are frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from model.network.network import Network, with_places
from model.training.examples import FeatureBatch, History, concatenate, draw_history, prepare, prepare_rows, shuffled
from model.training.loop import Progress, Trainer, TrainingOptions
from model.training.loss import LossWeights

_ONE_STEP_WEIGHTS = LossWeights(pinball=0.3, mixture=1.0, peak=0.0, copula=0.1, likelihood=0.01, atoms=0.1)
# The density of atoms trains well, but worsens long before the score does, so the score alone validates.
_CRPS_WEIGHTS = LossWeights(pinball=0.0, mixture=1.0, peak=0.0, copula=0.0, likelihood=0.0, atoms=0.0)
_VALIDATION_BATCH_ROWS = 512
_MIN_UNIT = 1e-9

TOGETHER = TrainingOptions(
    steps=1400, learning_rate=2e-3, weight_decay=0.03, validate_every=200, patience=3, horizon=1, revisit=False,
    weights=_ONE_STEP_WEIGHTS, judge=_CRPS_WEIGHTS,
)  # fmt: skip
OWN = TrainingOptions(
    steps=280, learning_rate=2e-3, validate_every=40, patience=3, horizon=1, revisit=False, weights=_ONE_STEP_WEIGHTS,
    judge=_CRPS_WEIGHTS, part="head",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Options of fine-tuning to a fleet.

    Attributes:
        together: of the network, on the windows of all items; its horizon is that of the adapted networks.
        own: of the head, on the windows of one item.
        windows: per update, for the network and for a head.
    """

    together: TrainingOptions = TOGETHER
    own: TrainingOptions = OWN
    windows: tuple[int, int] = (128, 64)


@dataclass(frozen=True, slots=True)
class ItemWindows:
    """Windows of one item: for training, and for validation on later futures."""

    train: FeatureBatch
    validation: FeatureBatch


def fleet_rows(network: Network, history: History, train_end: int, context: int, horizon: int) -> ItemWindows:
    """All windows of an item with a whole context; errors are divided by the spread of the train rows.

    Args:
        network: whose features are computed.
        history: the item's rows.
        train_end: rows before it train, rows after it only validate.
        context: rows of context.
        horizon: steps ahead that are learned.
    """
    num = len(history.values)
    of_rows = {"context": context, "horizon": horizon}
    first = min(context, train_end - 1) - 1
    train = prepare_rows(history, np.arange(first, train_end - 1), network.spec, last_row=train_end, **of_rows)
    validation = prepare_rows(history, np.arange(train_end - 1, num - 1), network.spec, last_row=num, **of_rows)
    spread = np.nan_to_num(np.nanstd(history.values[:train_end], axis=0)).clip(min=_MIN_UNIT)
    unit = torch.from_numpy(spread)
    return ItemWindows(*(replace(part, unit=unit.expand(len(part.target), -1)) for part in (train, validation)))


def adapt_together(network: Network, rows: Sequence[ItemWindows], options: FleetOptions) -> Network:
    """The network adapted to all items, which share indicators and levels; unchanged if validation does not improve."""
    train, validation = concatenate([item.train for item in rows]), concatenate([item.validation for item in rows])
    trainer = _trainer(network, train, validation.parts(_VALIDATION_BATCH_ROWS), options.together, options.windows[0])
    trainer.validate()  # the score of the given network is the one to beat
    trainer.run()
    return trainer.best_network()


def adapt_head(network: Network, rows: ItemWindows, options: FleetOptions) -> Network:
    """The network with its head adapted to one item and the places of its atoms; unchanged if nothing improves.

    Validation sets the number of updates. The head is then trained anew for as many updates on all rows, because the
    validation rows are the newest.
    """
    network = network if network.spec.places else with_places(network)
    train, validation = (with_tokens(some, network) for some in (rows.train, rows.validation))
    trainer = _trainer(network, train, validation.parts(_VALIDATION_BATCH_ROWS), options.own, options.windows[1])
    trainer.validate()  # the score of the given network is the one to beat
    trainer.run()
    updates = min(trainer.history, key=lambda record: record[1])[0]
    again = _trainer(network, concatenate([train, validation]), [], options.own, options.windows[1])
    for _ in range(updates):
        again.advance()
    return again.best_network()


def with_tokens(rows: FeatureBatch, network: Network) -> FeatureBatch:
    """The windows with the tokens that the network computes from their features."""
    with torch.no_grad():
        tokens = [network.tokens(part.features) for part in rows.parts(_VALIDATION_BATCH_ROWS)]
    return replace(rows, tokens=torch.cat(tokens))


def _trainer(
    network: Network, train: FeatureBatch, validation: Sequence[FeatureBatch], options: TrainingOptions, windows: int
) -> Trainer:
    trainable = copy.deepcopy(network).requires_grad_()
    return Trainer(trainable, shuffled([train], windows, options.seed), validation, options)


# Adapting a network to recorded telemetry: a few updates at a low rate, validated on the newest rows.


ADAPT = TrainingOptions(steps=300, learning_rate=3e-4, validate_every=25, patience=4)
_CONTEXT = 2048
_VALIDATION = 16
_MIN_ROWS = 64


class TooShortError(ValueError):
    """There are too few rows to train and to validate."""


def start_adaptation(
    network: Network,
    histories: Sequence[History],
    options: TrainingOptions = ADAPT,
    *,
    train_ends: Sequence[int] | None = None,
    context: int = _CONTEXT,
    start: int = 0,
) -> Trainer:
    """A training run on recorded rows; its best network is the given one until validation improves.

    Args:
        network: copied, not changed.
        histories: recorded items.
        train_ends: per item, rows before it train, rows after it only validate; default: the first 80 %.
        context: most rows of context.
        start: first step, for a run that is resumed.

    Raises:
        TooShortError: every item has fewer than 64 train rows.
    """
    items = list(histories)
    ends = [int(0.8 * len(h.values)) for h in items] if train_ends is None else list(train_ends)
    if not items or max(ends) < _MIN_ROWS:
        raise TooShortError(
            f"adapting needs at least {_MIN_ROWS} rows to learn from, beside those that judge; the longest series has "
            f" {max((len(h.values) for h in items), default=0)}"
        )

    def examples() -> Iterator[FeatureBatch]:
        number = start
        while True:
            yield prepare(draw_history(items, options.seed * 1_000_000 + number, context, ends), network.spec)
            number += 1

    trainer = Trainer(copy.deepcopy(network), examples(), _newest_windows(network, items, ends, context), options)
    trainer.validate()  # the score of the given network is the one to beat
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
    """The network adapted to recorded rows (see `start_adaptation`), unchanged if validation does not improve.

    Raises:
        TooShortError: too few rows.
    """
    trainer = start_adaptation(network, histories, options, train_ends=train_ends, context=context)
    trainer.run(on_progress, deadline_s)
    return trainer.best_network()


def _newest_windows(network: Network, items: list[History], ends: list[int], context: int) -> list[FeatureBatch]:
    """Contexts whose futures lie behind the train rows."""
    out = []
    for number in range(_VALIDATION):
        item = items[number % len(items)]
        end = ends[number % len(items)]
        example = draw_history([item], 500_000_000 + number, context, [len(item.values)], first_row=end - 1)
        out.append(prepare(example, network.spec))
    return out
