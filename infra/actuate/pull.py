"""For scalers that ask us (KEDA, HPA through Prometheus): the lease itself is the deed, so nothing is to be done."""

from __future__ import annotations

from typing import Literal

from agents.records import Target
from infra.actuate.actuator import Order


class Answers:
    """An actuator whose target follows the answer.

    What the cluster really has is the scaler's to see; the count compared with a command's expectation is the answer in
    force, and without one what the command says of the fleet.
    """

    done: Literal["accepted"] = "accepted"

    def __init__(self, name: str) -> None:
        self.name = name

    async def observe(
        self,
        workload: str,  # noqa: ARG002
        target: Target,  # noqa: ARG002
        expected: int | None,
        in_force: int | None,
    ) -> int | None:
        return expected if in_force is None else in_force

    async def apply(self, order: Order) -> str:  # noqa: ARG002
        return ""
