"""Training: it learns, is the same for the same seed, and goes on where it was put away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model.network.checkpoint import CheckpointError
from model.network.network import Network
from model.training import loop as runs
from model.training.adapt import TooShortError, adapt, start_adaptation
from model.training.examples import FeatureBatch, History, draw_history, example_at, ordered, prepare
from model.training.loop import Progress, Trainer, TrainingOptions
from model.training.loss import losses
from tests.model.network.untrained import SMALL

OPTIONS = TrainingOptions(steps=6, validate_every=3, seed=1)


def _history(rows: int) -> History:
    time = np.arange(rows)
    values = np.stack((10 + np.sin(time / 5), 3 + np.cos(time / 7)), axis=1)
    return History("ns/w", 0, 60_000, values, np.array([1, 2]), ("a", "b"), np.zeros(2), np.full(2, np.inf))


def _batch(seed: int) -> FeatureBatch:
    return prepare(draw_history([_history(200)], seed, 128, [200], tokens=16), SMALL)


def _stream(start: int = 0) -> Iterator[FeatureBatch]:
    return ordered(_batch, start, workers=0)


def _trainer(options: TrainingOptions = OPTIONS, start: int = 0) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Network(SMALL), _stream(start), [_batch(1000)], options)


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.network.parameters()])


def test_same_seed_same_weights_and_progress_is_told() -> None:
    first, second, seen = _trainer(), _trainer(), []
    first.run(seen.append)
    second.run()
    assert torch.equal(_weights(first), _weights(second))
    assert [p.step for p in seen] == [1, 2, 3, 4, 5, 6]
    assert isinstance(seen[-1], Progress)
    assert seen[-1].eta_s == 0
    assert seen[-1].best == min(score for _, score in first.history)


def test_a_fixed_batch_is_learned() -> None:
    batch = _batch(7)
    torch.manual_seed(0)
    trainer = Trainer(Network(SMALL), iter(lambda: batch, None), [batch], TrainingOptions(steps=60, validate_every=60))
    trainer.validate()
    before = trainer.best
    trainer.run()
    assert trainer.best is not None
    assert before is not None
    assert trainer.best < 0.9 * before


def test_best_network_is_that_of_the_best_validation() -> None:
    trainer = _trainer()
    trainer.run()
    best = {name: value.clone() for name, value in trainer.best_network().state_dict().items()}
    trainer.best = -1e9
    with torch.no_grad():
        for p in trainer.averaged.parameters():
            p.add_(1)
    trainer.validate()
    assert all(torch.equal(best[name], value) for name, value in trainer.best_network().state_dict().items())


def test_goes_on_where_it_was_put_away(tmp_path: Path) -> None:
    trainer = _trainer(TrainingOptions(steps=3, validate_every=3, seed=1))
    trainer.run()
    runs.save_run(trainer, tmp_path, {"seed": 1})
    again = _trainer(start=3)
    assert runs.restore_run(again, tmp_path, {"seed": 1})
    assert again.step == 3
    assert torch.equal(_weights(again), _weights(trainer))
    assert again.best == trainer.best
    again.run()
    assert again.step == 6


def test_a_run_of_another_kind_is_not_taken_up(tmp_path: Path) -> None:
    assert not runs.restore_run(_trainer(), tmp_path, {"seed": 1})
    runs.save_run(_trainer(), tmp_path, {"seed": 1})
    with pytest.raises(CheckpointError, match="other settings"):
        runs.restore_run(_trainer(), tmp_path, {"seed": 2})
    (tmp_path / runs.STATE).write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="cannot be taken up"):
        runs.restore_run(_trainer(), tmp_path, {"seed": 1})


def test_steps_beyond_the_horizon_teach_nothing() -> None:
    weights = []
    for spoilt in (0.0, 1e6):
        torch.manual_seed(0)
        batch = _batch(7)
        batch.target[:, 1:] += spoilt
        trainer = Trainer(Network(SMALL), iter([batch] * 4), [], TrainingOptions(steps=3, horizon=1))
        for _ in range(3):
            trainer.advance()
        weights.append(_weights(trainer))
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], _weights(_trainer()))


def test_stops_when_nothing_improves() -> None:
    trainer = _trainer(TrainingOptions(steps=100, validate_every=1, patience=2, learning_rate=0.0))
    trainer.validate()
    trainer.run()
    assert trainer.step == 2


def test_stops_in_time() -> None:
    trainer = _trainer(TrainingOptions(steps=10_000))
    trainer.run(deadline_s=0.0)
    assert trainer.step == 1
    assert trainer.best is not None


def test_examples_of_a_history_hold_what_came_before_and_after() -> None:
    history = _history(200)
    history.values[95, 0] = np.nan
    example = example_at(history, np.array([99, 180]), context=50, last_row=190)
    assert example.batch.values.shape == (2, 50, 2)
    assert not example.batch.observed[0, 45, 0]
    assert example.target[0, 0, 1] == pytest.approx(history.values[100, 1])
    assert example.observed[1].sum(0).tolist() == [9, 9]
    assert int(example.batch.origin_ts_ms[0]) == 100 * 60_000


def test_adapting_never_returns_worse_and_leaves_the_original_alone() -> None:
    torch.manual_seed(0)
    network = Network(SMALL)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    options = TrainingOptions(steps=8, validate_every=4, learning_rate=1e-3)
    adapted = adapt(network, [_history(300)], options)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    judge = start_adaptation(network, [_history(300)], options)
    start = judge.best
    judge.averaged.load_state_dict(adapted.state_dict())
    judge.validate()
    assert judge.best is not None
    assert start is not None
    assert judge.best <= start


def test_too_few_rows_to_adapt_to_are_refused() -> None:
    with pytest.raises(TooShortError, match="at least 64 rows"):
        start_adaptation(Network(SMALL), [_history(40)])


def test_batches_made_ahead_come_in_order() -> None:
    plain = [next(_stream(k)).target for k in (5, 6)]
    stream = ordered(_batch, 5, workers=0)
    assert all(torch.equal(next(stream).target, target) for target in plain)


def test_an_update_without_a_number_is_left_out() -> None:
    whole = _batch(7)
    broken = replace(whole, features=replace(whole.features, tokens=whole.features.tokens * torch.nan))
    torch.manual_seed(0)
    trainer = Trainer(Network(SMALL), iter([broken, whole]), [whole], replace(OPTIONS, revisit=False))
    before = _weights(trainer)
    trainer.advance()
    assert torch.equal(before, _weights(trainer))
    trainer.advance()
    assert not torch.equal(before, _weights(trainer))
    assert _weights(trainer).isfinite().all()


def test_errors_count_by_the_unit_that_is_given() -> None:
    batch = _batch(7)
    law = Network(SMALL)(batch.features, 1)
    unit = torch.tensor([4.0, 0.5]).expand(len(batch.target), 2)
    target, observed = batch.target[:, :1], batch.observed[:, :1]
    plain, half = (
        losses(law, batch.features, target, observed, torch.tensor([0]), u, paths=False) for u in (unit, 2 * unit)
    )
    for part in ("pinball", "mixture"):
        torch.testing.assert_close(plain[part], 2 * half[part])
    assert "peak" not in plain
    torch.testing.assert_close(plain["atoms"], half["atoms"])
