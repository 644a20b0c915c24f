"""What a replay is asked for, checked before anything runs: one sentence and exit code 2 for what cannot be meant."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from agents.policy import Policy
from infra.console.errors import HarmonyError
from infra.lab.replay.policies.catalogue import DEFAULT_POLICIES, POLICY_NAMES
from infra.lab.replay.policies.harmony import HARMONY_VARIANTS, REPLAY_GUARDS, REPLAY_POLICY
from infra.simulator.arrivals import MAX_TOKENS, MOST_SIGMA, Tokens
from infra.simulator.lead_time import MixedStarts

_MOST_REPLICAS: Final = 100_000  # of which the first need is searched by simulation
_SHORTEST_SCRAPE_S: Final = 0.1


def named_policies(text: str | None) -> tuple[str, ...]:
    """Those between the commas; all public ones where none is named."""
    if text is None:
        return DEFAULT_POLICIES
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in POLICY_NAMES]
    if unknown or not names:
        raise HarmonyError(f"Unknown policy {(unknown or [''])[0]!r}: choose from {', '.join(POLICY_NAMES)}.", 2)
    return names


def token_law(text: str) -> Tokens:
    """`mean` or `mean:sigma`."""
    mean, _, sigma = text.partition(":")
    try:
        law = Tokens(float(mean), float(sigma) if sigma else 0.0)
    except ValueError:
        law = Tokens(math.nan)
    if not (1 <= law.mean <= MAX_TOKENS and 0 <= law.sigma <= MOST_SIGMA):
        raise HarmonyError(
            f"Token counts must be a mean of 1 to {MAX_TOKENS}, such as 900, or 900:0.6 with a sigma of at most "
            f"{MOST_SIGMA:g}, got {text!r}.",
            2,
        )
    return law


def told_capacity(text: str) -> tuple[float, float | None]:
    """`times`, or `times:off_by`."""
    times, _, off_by = text.partition(":")
    try:
        told = float(times), float(off_by) if off_by else None
    except ValueError:
        told = math.nan, None
    if not (0.01 <= told[0] <= 100 and (told[1] is None or 1.01 <= told[1] <= 2.5)):
        raise HarmonyError(
            "--told-capacity must be times of the load test's figure of 0.01 to 100, such as 2.2, or 2.2:2 with a "
            f"factor of 1.01 to 2.5 that it may be off by, got {text!r}.",
            2,
        )
    return told


def check_slo(ttft_s: float, tpot_s: float, share: float) -> None:
    """What requests are promised, and how many of them."""
    if not (math.isfinite(ttft_s) and ttft_s > 0 and math.isfinite(tpot_s) and tpot_s > 0):
        raise HarmonyError(f"--slo-ttft and --slo-tpot must be seconds above 0, got {ttft_s} and {tpot_s}.", 2)
    if not 0 < share < 1:
        raise HarmonyError(f"--objective must be between 0 and 1, such as 0.99, got {share}.", 2)


def check_numbers(
    ttft_s: float, tpot_s: float, share: float, bounds: tuple[int, int], train_share: float, scrape_s: float
) -> None:
    """The others. `bounds`: fewest and most replicas."""
    check_slo(ttft_s, tpot_s, share)
    fewest, most = bounds
    if fewest < 0 or most < 1 or fewest > most:
        raise HarmonyError(f"Replica bounds must satisfy 0 <= min <= max and max >= 1, got {fewest} and {most}.", 2)
    if most > _MOST_REPLICAS:
        raise HarmonyError(f"--max-replicas must be {_MOST_REPLICAS} at most, got {most}.", 2)
    if not 0 < train_share < 1:
        raise HarmonyError(f"--train-share must be between 0 and 1, got {train_share}.", 2)
    if 0 < scrape_s < _SHORTEST_SCRAPE_S:
        raise HarmonyError(
            f"--scrape-interval must be 0 or at least {_SHORTEST_SCRAPE_S:g} seconds, got {scrape_s}.", 2
        )


def policy_with(epsilon: float | None, guards: str, *, tuned: bool) -> Policy:
    """HARMONY's, as asked for."""
    if guards not in REPLAY_GUARDS:
        raise HarmonyError(f"--guards: {guards!r} is none of {', '.join(REPLAY_GUARDS)}.", 2)
    policy = replace(REPLAY_POLICY, guards=REPLAY_GUARDS[guards])
    if epsilon is None:
        return policy
    if not 0 < epsilon < 1:
        raise HarmonyError(f"--epsilon must be between 0 and 1, such as 0.01, got {epsilon}.", 2)
    if tuned:
        raise HarmonyError("--epsilon is what tuning chooses: give --no-tune with it.", 2)
    return replace(policy, epsilon=epsilon)


def short_sight(policies: tuple[str, ...], policy: Policy, step_s: float, lead_s: float) -> str | None:
    """A word to who lets HARMONY see less far than a start takes: it then gives no replica up."""
    sight_s = policy.max_horizon * step_s
    if sight_s >= lead_s or not any(name in HARMONY_VARIANTS for name in policies):
        return None
    return (
        f"With steps of {step_s:g} s HARMONY sees {sight_s:g} s ahead, less than the {lead_s:g} s that a start takes: "
        f"it gives no replica up. A --step of {math.ceil(lead_s / policy.max_horizon)} or more sees as far."
    )


# `--lead-time` as it is written: constant, lognormal, or of warm and cold starts.


_LONGEST_LEAD_S: Final = 86_400.0


def read_lead_time(text: str) -> tuple[float, float, MixedStarts | None]:
    """Mean in seconds, sigma of the logarithm, and starts of two kinds.

    Raises:
        HarmonyError: it says nothing of the kind.
    """
    quick, kinds, slow = text.partition("/")
    if kinds:
        slow_s, _, share = slow.partition(":")
        told = MixedStarts(_number(quick), _number(slow_s), _number(share))
        if 0 < told.quick_s <= told.slow_s <= _LONGEST_LEAD_S and 0 < told.slow_share < 1:
            return told.mean_s, 0.0, told
    else:
        mean, _, sigma = text.partition("~")
        mean_s, sigma_log = _number(mean), _number(sigma) if sigma else 0.0
        if 0 < mean_s <= _LONGEST_LEAD_S and 0 <= sigma_log <= MOST_SIGMA:
            return mean_s, sigma_log, None
    raise HarmonyError(
        "--lead-time must be seconds above 0 and at most a day, such as 100, 100~0.3 with a sigma of at most "
        f"{MOST_SIGMA:g}, or 40/300:0.25 of quick and slow starts and the share of the slow, got {text!r}.",
        2,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
