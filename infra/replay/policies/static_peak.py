"""A constant count."""

from __future__ import annotations

from dataclasses import dataclass

from infra.lab.replay.view import View


@dataclass(frozen=True, slots=True)
class StaticPeak:
    """Always `replicas`; tuned to the fewest that keep the objective on the training part."""

    replicas: int
    period_s: float = 3_600.0
    looks_back_s: float = 0.0

    def wanted(self, view: View) -> int:  # noqa: ARG002
        return self.replicas
