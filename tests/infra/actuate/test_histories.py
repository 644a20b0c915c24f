"""Histories that hypothesis draws and shrinks, on every one of our actuators, against the kit's laws."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from infra.actuate.conformance.kit import Bench
from infra.actuate.conformance.laws import RandomHistory
from infra.actuate.conformance.subjects import ControllerSubject, MemoryWorld, PullWorld, World
from tests.infra.actuate.worlds import KedaWorld, KubernetesWorld, WebhookWorld

# Explaining a failure takes longer than finding it.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


def live(world: Callable[[], World], rng: random.Random, steps: int) -> None:
    subject = ControllerSubject(world())
    try:
        history = RandomHistory(Bench(subject), rng)
        for _ in range(steps):
            history.step()
    finally:
        subject.close()


@pytest.mark.parametrize("world", [MemoryWorld, PullWorld])
@given(rng=st.randoms(use_true_random=False), steps=st.integers(1, 40))
@settings(max_examples=60, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_no_history_breaks_a_law(world: Callable[[], World], rng: random.Random, steps: int) -> None:
    live(world, rng, steps)


@pytest.mark.parametrize("world", [KubernetesWorld, WebhookWorld, KedaWorld])
@given(rng=st.randoms(use_true_random=False), steps=st.integers(1, 25))
@settings(max_examples=10, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_nor_does_one_over_real_http_and_grpc(world: Callable[[], World], rng: random.Random, steps: int) -> None:
    live(world, rng, steps)
