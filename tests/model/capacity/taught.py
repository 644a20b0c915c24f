"""A service of known capacity, and a posterior that was taught by it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from model.capacity.evidence import CLUMP, LoadEvidence
from model.capacity.grid import LOWEST, SPACING
from model.capacity.posterior import CapacityPosterior, SlotEvidence

STEP_MS = 15_000
SLOT = SlotEvidence(
    end_ts_ms=STEP_MS, step_s=15.0, arrival_rate=20.0, miss_ratio=0.0, waiting=0.0, ready=10, pending=0, draining=0,
    ttft_s=2.0, objective=0.99,
)  # fmt: skip


class Truth:
    """A service of which requests miss together: the share of a slot is Beta around the curve of misses over load."""

    def __init__(self, capacity: float, steepness: float, seed: int) -> None:
        self.capacity, self._steepness = capacity, steepness
        self._rng = np.random.default_rng(seed)
        self._now_ms = 0

    def slot(self, load: float, ready: int = 10) -> SlotEvidence:
        self._now_ms += STEP_MS
        mean = 1.0 / (1.0 + 99.0 * (self.capacity / load) ** self._steepness)
        miss = float(self._rng.beta(CLUMP * mean, CLUMP * (1.0 - mean)))
        slot = replace(SLOT, end_ts_ms=self._now_ms, arrival_rate=load * ready, ready=ready)
        return replace(slot, miss_ratio=miss, waiting=None)

    def loads(self, num: int) -> list[float]:
        """Loads as of a day: slowly up and down, beyond the capacity at the peak."""
        phase = np.linspace(0.0, 6.0 * math.pi, num)
        return list(self.capacity * (0.8 + 0.4 * np.sin(phase)) * np.exp(self._rng.normal(0.0, 0.03, num)))


def taught(posterior: CapacityPosterior, truth: Truth, num: int) -> CapacityPosterior:
    for load in truth.loads(num):
        posterior.observe(truth.slot(load))
    return posterior


def place(posterior: CapacityPosterior) -> float:
    """Requests/s per replica about which evidence lies: the geometric mean of the loads remembered."""
    state = posterior.snapshot()
    mean = LoadEvidence.of([state["bins"], state["weights"]]).mean()
    assert mean is not None
    return float(state.get("unit", (1.0,))[0]) * math.exp((mean + LOWEST) * SPACING)
