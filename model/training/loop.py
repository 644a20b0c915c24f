"""The training loop: updates by AdamW, an averaged network, validation on separate examples, and resuming from disk.

Sources: I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019 (AdamW), and "SGDR", ICLR 2017
(cosine schedule); B. Polyak, A. Juditsky, SIAM Journal on Control and Optimization 1992 (averaged weights).
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import cos, pi
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from model.network.checkpoint import CheckpointError
from model.network.network import Network
from model.network.spec import MAX_HORIZON
from model.training.examples import FeatureBatch
from model.training.loss import LossWeights, losses

_REPLAY_BATCHES = 48  # earlier batches from which the second batch of an update is drawn
_AVERAGE_DECAY = 0.995
_SCORED_STEPS = 24  # steps of the horizon per batch; the gradients of the others are much the same


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train.

    Attributes:
        steps: updates; each takes one fresh batch and one seen before.
        learning_rate: at its highest; rises over the first steps, then falls along a cosine.
        weight_decay: of AdamW.
        validate_every: steps between validations.
        patience: validations without progress after which training stops; 0 = never.
        seed: of initialisation and of the order of examples.
        horizon: steps ahead that are learned; later ones stay as they were.
        part: "all", or "head": only what reads a token. The tokens of a batch are then computed once.
        revisit: whether each update takes a batch seen before, too: right where features cost more than updates.
        weights: of the parts of the loss.
        judge: weights of the parts in the validation score; None: as in the loss.
    """

    steps: int = 6000
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.01
    validate_every: int = 250
    patience: int = 8
    seed: int = 0
    horizon: int = MAX_HORIZON
    part: Literal["all", "head"] = "all"
    revisit: bool = True
    weights: LossWeights = field(default_factory=LossWeights)
    judge: LossWeights | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run after a step.

    Attributes:
        step, steps: steps done, and steps of the whole run.
        loss: mean of the last steps' total.
        validation: latest validation score, lower is better; None before the first.
        best: best so far.
        eta_s: seconds left at the present pace.
    """

    step: int
    steps: int
    loss: float
    validation: float | None
    best: float | None
    eta_s: float


class Trainer:
    """One training run, which can be saved and resumed at any step.

    Args:
        network: trained in place; its averaged copy is `averaged`.
        examples: endless batches in a fixed order.
        validation: fixed examples for the score.
        options: of the run.
    """

    def __init__(
        self,
        network: Network,
        examples: Iterator[FeatureBatch],
        validation: Sequence[FeatureBatch],
        options: TrainingOptions,
    ) -> None:
        self.network = network
        self.averaged = copy.deepcopy(network).requires_grad_(requires_grad=False)
        self.step = 0
        self.best: float | None = None
        self.best_weights: dict[str, Tensor] | None = None
        self.history: list[tuple[int, float]] = []
        self._examples = examples
        self._validation = validation
        self._options = options
        self._replay_batches: list[FeatureBatch] = []
        self._parameters = list(network.head_parameters() if options.part == "head" else network.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=options.learning_rate, weight_decay=options.weight_decay, betas=(0.9, 0.98)
        )
        self._losses: list[float] = []

    def run(self, on_progress: Callable[[Progress], None] | None = None, deadline_s: float | None = None) -> None:
        """Train until the steps are done, nothing improves, or the time is up.

        Args:
            on_progress: called after every step.
            deadline_s: seconds of the run; the learning rate then falls with time instead of steps.
        """
        started, first = time.monotonic(), self.step
        stale = 0
        start_share = self.step / self._options.steps
        while self.step < self._options.steps:
            now = 0.0 if deadline_s is None else (time.monotonic() - started) / max(deadline_s, 1e-6)
            time_share = start_share + (1 - start_share) * now if deadline_s is not None else 0.0
            self.advance(time_share)
            if self.step % self._options.validate_every == 0 or self.step == self._options.steps:
                stale = 0 if self.validate() else stale + 1
            elapsed = time.monotonic() - started
            if on_progress is not None:
                left = (self._options.steps - self.step) * elapsed / max(1, self.step - first)
                left = left if deadline_s is None else min(left, max(0.0, deadline_s - elapsed))
                recent = self._losses[-100:]
                latest = self.history[-1][1] if self.history else None
                on_progress(
                    Progress(self.step, self._options.steps, sum(recent) / len(recent), latest, self.best, left)
                )
            if self._options.patience and stale >= self._options.patience:
                break
            if deadline_s is not None and elapsed > deadline_s:
                if not self.history or self.history[-1][0] != self.step:
                    self.validate()
                break

    def advance(self, time_share: float = 0.0) -> None:
        """One update.

        Args:
            time_share: share of the time that is over; the learning rate follows it where it is ahead of the steps.
        """
        self._update(max(self.step / self._options.steps, min(1.0, time_share)))

    def validate(self) -> bool:
        """Score the averaged network.

        Returns:
            Whether it is the best so far.
        """
        steps = torch.arange(0, MAX_HORIZON, 3)
        with torch.no_grad():
            judge = self._options.judge or self._options.weights
            scores = [self._loss(self.averaged, batch, steps, judge).item() for batch in self._validation]
        score = sum(scores) / max(1, len(scores))
        self.history.append((self.step, score))
        if self.best is not None and score >= self.best:
            return False
        self.best = score
        self.best_weights = {name: value.clone() for name, value in self.averaged.state_dict().items()}
        return True

    def best_network(self) -> Network:
        """The averaged weights at the best validation."""
        best = copy.deepcopy(self.averaged)
        if self.best_weights is not None:
            best.load_state_dict(self.best_weights)
        return best

    def state(self) -> dict[str, Any]:
        """The state that a later run resumes from: weights, averages, moments, counters."""
        return {
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "best": self.best_weights or {},
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "best_score": self.best,
            "history": self.history,
            "options": asdict(self._options),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Restore `state`; the examples must start at its step."""
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.best_weights = state["best"] or None
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        self.best = state["best_score"]
        self.history = [(int(step), float(score)) for step, score in state["history"]]

    def _update(self, done: float) -> None:
        fresh = next(self._examples)
        if self._options.part == "head" and fresh.tokens is None:  # what precedes the head stays as it is
            with torch.no_grad():
                fresh = replace(fresh, tokens=self.network.tokens(fresh.features))
        draw = random.Random(self._options.seed * 1_000_003 + self.step)
        batches = [fresh]
        if self._options.revisit:
            batches += [draw.choice(self._replay_batches)] if self._replay_batches else []
            if len(self._replay_batches) < _REPLAY_BATCHES:
                self._replay_batches.append(fresh)
            else:
                self._replay_batches[draw.randrange(_REPLAY_BATCHES)] = fresh
        rate = self._rate(done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch in batches:
            horizon = self._options.horizon
            steps = torch.tensor(sorted(draw.sample(range(horizon), min(horizon, _SCORED_STEPS))))
            loss = self._loss(self.network, batch, steps, self._options.weights) / len(batches)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        if bool(norm.isfinite()):  # one step with NaN would spoil all weights
            self._optimizer.step()
        self.step += 1
        keep = min(_AVERAGE_DECAY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                mean.lerp_(now, 1 - keep)
        self._losses.append(total)

    def _rate(self, done: float) -> float:
        """Learning rate at the share `done` of the run: a linear rise, then a cosine."""
        warm = min(1.0, (self.step + 1) / min(100, max(1, self._options.steps // 10)))
        return self._options.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + cos(pi * done)))

    def _loss(self, network: Network, batch: FeatureBatch, steps: Tensor, weights: LossWeights) -> Tensor:
        horizon = min(batch.target.shape[1], self._options.horizon)
        law = network(batch.features, horizon, batch.tokens)
        target, observed = batch.target[:, :horizon], batch.observed[:, :horizon]
        paths = weights.peak > 0
        parts = losses(law, batch.features, target, observed, steps[steps < horizon], batch.unit, paths=paths)
        total = weights.pinball * parts["pinball"] + weights.mixture * parts["mixture"]
        if paths:
            total = total + weights.peak * parts["peak"]
        total = total + weights.copula * parts["copula"] + weights.likelihood * parts["likelihood"]
        return total + weights.atoms * parts["atoms"]


# A training run on disk: safetensors (weights, averages, the optimizer's moments) with a JSON file of counters.
# Nothing is ever unpickled.


STATE, COUNTERS = "training.safetensors", "training.json"


def save_run(trainer: Trainer, folder: Path, identity: dict[str, Any]) -> None:
    """Write the state of a run.

    Args:
        trainer: the run.
        folder: of the files.
        identity: data, seed and shape, by which another run is told apart.
    """
    from safetensors.torch import save

    state = trainer.state()
    tensors: dict[str, Tensor] = {}
    for part in ("network", "averaged", "best"):
        tensors |= {f"{part}/{name}": value.detach().clone() for name, value in state[part].items()}
    for index, moments in state["optimizer"]["state"].items():
        tensors |= {f"optimizer/{index}/{name}": torch.as_tensor(value).clone() for name, value in moments.items()}
    counters = {name: state[name] for name in ("step", "best_score", "history", "options")}
    counters |= {"identity": identity, "groups": state["optimizer"]["param_groups"]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in ((STATE, save(tensors)), (COUNTERS, json.dumps(counters).encode())):
        partial = folder / f"{name}.part"
        partial.write_bytes(data)
        partial.replace(folder / name)


def restore_run(trainer: Trainer, folder: Path, identity: dict[str, Any]) -> bool:
    """Resume the run in `folder`; False without one.

    Raises:
        CheckpointError: the files are damaged, or of another run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not (folder / COUNTERS).is_file():
        return False
    try:
        counters = json.loads((folder / COUNTERS).read_text())
        tensors = load((folder / STATE).read_bytes())
        if counters["identity"] != json.loads(json.dumps(identity)):
            raise CheckpointError(
                f"{folder}: holds a run with other settings ({counters['identity']}); choose another folder"
            )
        state: dict[str, Any] = {name: counters[name] for name in ("step", "best_score", "history")}
        for part in ("network", "averaged", "best"):
            prefix = f"{part}/"
            state[part] = {name[len(prefix) :]: v for name, v in tensors.items() if name.startswith(prefix)}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                moments.setdefault(int(index), {})[key] = value
        state["optimizer"] = {"state": moments, "param_groups": counters["groups"]}
        trainer.resume(state)
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the run cannot be taken up ({error}); start anew in another folder") from None
    return True
