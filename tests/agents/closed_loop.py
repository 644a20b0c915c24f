"""One workload's worker in memory, slot by slot: what arrived in, replicas out, which a fleet obeys at once."""

from __future__ import annotations

from typing import Final

from agents.policy import Policy
from infra.lab.replay.loop import MemoryLoop
from infra.observability.metrics import PrometheusMeter
from model.baselines.ridge import RidgeForecaster
from streams.config import StreamConfig
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample

STEP_MS: Final = 15_000
START_MS: Final = 1_763_636_400_000  # on the hour


class ClosedLoop:
    """Workload `w` of the policy.

    Attributes:
        replicas: that are ready, and so were ordered last.
    """

    def __init__(self, policy: Policy, replicas: int) -> None:
        stream = StreamConfig(step_ms=STEP_MS, grace_ms=0, skew_ms=0, context_steps=128)
        self.replicas = replicas
        self._meter = PrometheusMeter(strict=True)
        self._loop = MemoryLoop(policy, stream, RidgeForecaster(), meter=self._meter)
        self._end_ms, self._started, self._good = START_MS, 0.0, 0.0

    def slot(self, arrived: float, running: float, good: float | None = None) -> int:
        """Close a slot with so many requests, so many in service, and all of them good unless said otherwise."""
        self._end_ms += STEP_MS
        self._started += arrived
        self._good += arrived if good is None else good
        told = {
            "requests_started_total": self._started, "generation_tokens_total": 200 * self._started,
            "slo_good_total": self._good, "slo_total": self._started, "num_requests_running": running,
            "num_requests_waiting": 0.0,
        }  # fmt: skip
        sent_ms = self._end_ms - 100
        values = [encode_sample("requests", "w", "engine", sent_ms, told)]
        values.append(encode_fleet("w", "k8s", FleetFacts(sent_ms, self.replicas, 0, 0)))
        commands = self._loop.close_slot("w", values, self._end_ms)
        self.replicas = commands[-1].replicas if commands else self.replicas
        return self.replicas

    def expected_bursts(self, kind: str) -> tuple[int, float]:
        """Slots in which a burst of this kind was expected: as their decisions say, and as was counted."""
        told = [getattr(decision.forecast, kind) for decision in self._loop.decisions]
        counted = self._meter.registry.get_sample_value("harmony_expected_bursts_total", {"kind": kind})
        return sum(burst is not None for burst in told), counted or 0.0

    def close(self) -> None:
        """End its event loop."""
        self._loop.close()
