"""extracted"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from agents.policy import Policy
from agents.records import PlanOf
from streams.config import StreamConfig


@dataclass(frozen=True, slots=True)
class Frame:
    """What all workloads of one plan share; `plan` for what it says of all, not for theirs."""

    plan: PlanOf[msgspec.Raw]
    policy: Policy
    policy_fingerprint: str
    stream: StreamConfig

    @property
    def origin_ts_ms(self) -> int:
        return self.plan.origin_ts_ms

    @property
    def lease_ms(self) -> int:
        """Counted from the origin. The grace comes on top: no decision exists before its slot can close."""
        steps = max(self.policy.guards.lease_steps, self.policy.plan_every + 1)
        return self.stream.grace_ms + steps * self.stream.step_ms

    @property
    def sequence(self) -> int:
        return self.plan.origin_ts_ms // self.stream.step_ms
