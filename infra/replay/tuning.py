"""Every policy gets the same number of trials, at most, on the training part; the cheapest to keep the objective wins.

Where none kept it, the cheapest of those that missed about as little as the best does: of misses that no candidate
could help, one request more or less would else decide what is spent. The static peak knows the load instead: it is the
fewest constant replicas that keep the objective on the part that is scored.

A candidate that only just kept the objective in its trial will miss it as often as not, so that a trial must stay
within `MARGIN` of the misses allowed; the same for every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.lab.replay.policies.catalogue import STATIC_PEAK, Choice, Knowledge, candidates, controller_of, default_of
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS
from infra.lab.replay.setting import Setting
from infra.lab.replay.simulation import live

MARGIN = 0.6
_ALIKE = 1.05  # times the fewest misses, which nobody would pay for to avoid


@dataclass(frozen=True, slots=True)
class Trial:
    """What one candidate did on the training part."""

    choice: Choice
    attainment: float
    gpu_hours: float


def tune(
    policy: str, training: Setting, scored: Setting, known: Knowledge, seed: int, *, tuned: bool = True
) -> tuple[Choice, list[Trial]]:
    """The candidate to score, and every trial that was made for it; not `tuned`: the middle candidate, untried.

    Candidates of HARMONY and of the static peak are ordered, the cheapest last or first, so they are bisected.
    """
    offered = candidates(policy, training, known)
    if policy == STATIC_PEAK:
        return _bisect(offered, scored, known, seed, scored.share, offered[-1])
    if not tuned:
        return default_of(policy, offered, known), []
    if policy in HARMONY_VARIANTS:
        return _bisect(offered, training, known, seed, _wanted(training), default_of(policy, offered, known))
    trials = [_try(choice, training, known, seed) for choice in offered]
    return best_of(trials, _wanted(training)), trials


def best_of(trials: Sequence[Trial], share: float) -> Choice:
    """The cheapest trial that kept the objective, else of those that missed about as little as the best."""
    fewest = 1.0 - max(t.attainment for t in trials)
    kept = [t for t in trials if t.attainment >= share] or [t for t in trials if 1.0 - t.attainment <= _ALIKE * fewest]
    return min(kept, key=lambda t: (t.gpu_hours, -t.attainment)).choice


def _wanted(training: Setting) -> float:
    return 1.0 - MARGIN * (1.0 - training.share)


def _try(choice: Choice, setting: Setting, known: Knowledge, seed: int) -> Trial:
    lived = live(setting, controller_of(choice, known), seed)
    return Trial(choice, lived.attainment, lived.gpu_hours)


def _bisect(
    offered: list[Choice], setting: Setting, known: Knowledge, seed: int, share: float, default: Choice
) -> tuple[Choice, list[Trial]]:
    """The first of the candidates, in the order given, that keeps the objective; the best tried where none does.

    The default where all candidates missed alike.
    """
    trials: list[Trial] = []
    low, high = 0, len(offered) - 1
    while low < high:
        middle = (low + high) // 2
        trials.append(_try(offered[middle], setting, known, seed))
        low, high = (low, middle) if trials[-1].attainment >= share else (middle + 1, high)
    if low == len(offered) - 1:
        trials.append(_try(offered[low], setting, known, seed))
        if len({t.attainment for t in trials}) == 1 and trials[0].attainment < share:
            return default, trials  # what was missed, no candidate could help: the trials say nothing
        return best_of(trials, share), trials
    return offered[low], trials
