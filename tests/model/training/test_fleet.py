"""Windows prepared once are those that are drawn; a fleet teaches one network, an item its head."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import torch

from model.network.atoms import MAX_RANKED_ATOMS
from model.network.features import extract_features
from model.network.network import with_places
from model.training.adapt import (
    OWN,
    TOGETHER,
    FleetOptions,
    ItemWindows,
    adapt_head,
    adapt_together,
    fleet_rows,
    with_tokens,
)
from model.training.examples import History, concatenate, example_at, prepare_rows, shuffled
from tests.model.network.untrained import SMALL, small_network

FEW = FleetOptions(
    replace(TOGETHER, steps=20, validate_every=10), replace(OWN, steps=20, validate_every=10), windows=(16, 8)
)


def _history(seed: int = 0, rows: int = 220, name: str = "a") -> History:
    rng = np.random.default_rng(seed)
    hops = rng.choice([1.0, 2.0, 5.0], rows, p=[0.7, 0.2, 0.1])
    wave = np.sin(np.arange(rows) / 5) + rng.normal(0, 0.1, rows)
    bounds = np.full(2, np.inf)
    return History(name, 0, 60_000, np.stack((wave, hops), axis=1), np.array([1, 3]), ("load", "disk"), -bounds, bounds)


def _rows(seed: int = 0) -> ItemWindows:
    return fleet_rows(small_network(), _history(seed), 180, 48, 1)


def test_prepared_windows_give_the_forecast_of_their_features() -> None:
    network, history = small_network(), _history()
    origins = np.arange(47, 150)
    prepared = prepare_rows(history, origins, SMALL, context=48, horizon=2, last_row=180)
    some = torch.tensor([3, 90])
    example = example_at(history, origins[some], 48, 180)
    with torch.no_grad():
        ours = network(prepared.take(some).features, 2).marginal
        theirs = network(extract_features(example.batch, SMALL), 2).marginal
    assert torch.equal(ours.spline.y, theirs.spline.y)
    assert torch.equal(ours.weights, theirs.weights)
    assert torch.equal(prepared.target[some], example.target[:, :2])


def test_rows_that_judge_teach_nothing() -> None:
    clean, rubbish = _history(), _history()
    rubbish.values[180:] += 1e3
    one, other = (fleet_rows(small_network(), history, 180, 48, 1).train for history in (clean, rubbish))
    assert torch.equal(one.features.tokens, other.features.tokens)
    assert torch.equal(one.target, other.target)
    assert one.unit is not None
    assert other.unit is not None
    assert torch.equal(one.unit, other.unit)
    assert len(one.target) == 180 - 48  # every row with its whole context before it is foretold once


def test_a_pass_gives_every_window_once_and_a_later_start_goes_on_there() -> None:
    prepared = concatenate([_rows(seed).train for seed in (0, 1)])
    count = len(prepared.target) // 8
    batches = list(islice(shuffled([prepared], 8, seed=1), 3 * count))
    first = torch.cat([batch.features.tokens for batch in batches[:count]])
    assert len(torch.unique(first.flatten(1), dim=0)) == count * 8
    assert not torch.equal(first, torch.cat([batch.features.tokens for batch in batches[count : 2 * count]]))
    later = next(shuffled([prepared], 8, seed=1, start=count + 2))
    assert torch.equal(later.features.tokens, batches[count + 2].features.tokens)


def test_tokens_that_are_known_give_the_same_law() -> None:
    network, rows = small_network(), _rows().validation
    known = with_tokens(rows, network)
    with torch.no_grad():
        plain, same = network(rows.features, 1), network(known.features, 1, known.tokens)
    assert torch.equal(plain.marginal.spline.y, same.marginal.spline.y)


def test_the_fleet_changes_the_network_and_an_item_only_its_head() -> None:
    network, rows = small_network(), [_rows(seed) for seed in (0, 1)]
    together = adapt_together(network, rows, FEW)
    own = adapt_head(together, rows[0], FEW)
    before, between, after = network.state_dict(), together.state_dict(), own.state_dict()
    head = {name for name in between if name.split(".")[0] in {"latents", "head", "trust"}}
    assert any(not torch.equal(before[name], between[name]) for name in between.keys() - head)
    assert {name for name in between if not torch.equal(between[name], after[name])} <= head
    assert any(not torch.equal(between[name], after[name]) for name in head)
    assert after.keys() - between.keys() == {"atom_place.weight", "atom_place.bias"}
    again = adapt_head(adapt_together(small_network(), rows, FEW), rows[0], FEW).state_dict()
    assert all(torch.equal(after[name], again[name]) for name in after)


def test_places_change_nothing_until_they_are_learned_and_then_tell_states_apart() -> None:
    network, features = small_network(), _rows().validation.features
    knowing = with_places(network)
    with torch.no_grad():
        before, same = network(features, 1).marginal, knowing(features, 1).marginal
        assert torch.equal(before.weights, same.weights)
        highest = 2 * MAX_RANKED_ATOMS + 2  # of three atoms
        assert knowing.atom_place is not None
        knowing.atom_place.bias[highest] = 30.0
        weights = knowing(features, 1).marginal.weights[:, 1]
    three = features.atoms.valid[:, 1].sum(-1) == 3
    top = features.atoms.z[:, 1].where(features.atoms.valid[:, 1], -torch.inf).argmax(-1)
    assert three.any()
    assert torch.equal(weights.argmax(-1)[three], top[three])
    assert torch.equal(weights[~three], before.weights[:, 1][~three])
    assert with_places(knowing).state_dict().keys() == knowing.state_dict().keys()
