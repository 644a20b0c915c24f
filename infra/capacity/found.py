"""From load tests, or from model and GPU, to what one replica carries within the SLO and how far that may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from agents.policy import Slo
from infra.console.errors import HarmonyError
from infra.lab.capacity.load_tests import LoadTest
from infra.replay.benchmark import benchmark_rps
from infra.replay.rates import Tokens
from infra.simulator.arrivals import Arrivals
from infra.simulator.ledger import Objective
from infra.simulator.profiles import Profile
from model.capacity.grid import LOAD_TEST_OFF_BY
from model.capacity.roofline import OFF_BY, IterationCosts

_DRAWS: Final = 2_000
_SEED: Final = 7
_FEW_MISSES: Final = 2.0  # allowed in a test, below which one request more or fewer decides it


@dataclass(frozen=True, slots=True)
class Found:
    """Requests/s of one replica, the factor that it may be off by, and what is to be said of it."""

    capacity_rps: float
    off_by: float
    remarks: tuple[str, ...] = ()


def of_load_tests(tests: Sequence[LoadTest], slo: Slo, replicas: int) -> Found:
    """Between the highest rate that kept the objective and the lowest above it that did not.

    Raises:
        HarmonyError: no rate kept it (exit code 2).
    """
    failed = min((test.rate_rps for test in tests if not test.kept), default=math.inf)
    kept = max((test.rate_rps for test in tests if test.kept and test.rate_rps < failed), default=None)
    if kept is None:
        raise HarmonyError(
            f"Even at {failed:g} requests/s too many missed {slo.ttft_s:g} s or {slo.tpot_s:g} s; test a lower rate, "
            "or allow more time.",
            2,
        )
    remarks = []
    sent = min(test.requests for test in tests if test.rate_rps in (kept, failed))
    if sent * (1.0 - slo.objective) < _FEW_MISSES:
        remarks.append(
            f"A test of {sent} requests cannot tell {slo.objective:.2%} from a little less: send "
            f"{math.ceil(_FEW_MISSES / (1.0 - slo.objective)):,} or more."
        )
    if math.isinf(failed):
        remarks.append("No rate was too high, so that more may be carried: test higher ones.")
        return Found(kept / replicas, LOAD_TEST_OFF_BY, tuple(remarks))
    between = math.sqrt(failed / kept)
    return Found(kept * between / replicas, max(between, LOAD_TEST_OFF_BY), tuple(remarks))


def profile_of(name: str, costs: IterationCosts, gpus: int, max_batch: int, max_prefill_tokens: int) -> Profile:
    """The replay's engine at these costs."""
    limits = {"max_batch": max_batch, "max_prefill_tokens": max_prefill_tokens}
    return Profile(name=name, gpus_per_replica=gpus, **asdict(costs), **limits)


def of_profile(profile: Profile, prompt: Tokens, output: Tokens, slo: Slo) -> Found:
    """What a load test of four replicas of such an engine finds, simulated.

    Raises:
        HarmonyError: an idle replica misses the SLO too often (exit code 2).
    """
    rng = np.random.default_rng(_SEED)
    lengths = Arrivals(np.zeros(_DRAWS), prompt.draw(rng, _DRAWS), output.draw(rng, _DRAWS))
    carried = benchmark_rps(profile, lengths, Objective(slo.ttft_s, slo.tpot_s), slo.objective, _SEED)
    if carried is None:
        raise HarmonyError(
            f"Even an idle replica does not keep {slo.ttft_s:g} s and {slo.tpot_s:g} s for {slo.objective:.2%} of such "
            f"requests: an iteration takes {1000 * profile.base_s:.0f} ms before it does anything. Allow more time, or "
            "give it more or faster GPUs.",
            2,
        )
    return Found(carried, OFF_BY)
