"""What a run's decisions came to, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agents.records import Decision


class DecisionTally:
    """Decisions by action, holds by reason, forecasts behind them by source, and distinct commands."""

    def __init__(self) -> None:
        self.by_action: Counter[str] = Counter()
        self.hold_reasons: Counter[str] = Counter()
        self.forecast_sources: Counter[str] = Counter()
        self.commands: set[str] = set()

    @property
    def total(self) -> int:
        return self.by_action.total()

    def add(self, decisions: Iterable[Decision]) -> None:
        """Decisions, each given once."""
        for decision in decisions:
            self.by_action[decision.action] += 1
            if decision.action == "hold":
                self.hold_reasons[decision.reason] += 1
            if decision.forecast.source is not None:
                self.forecast_sources[decision.forecast.source] += 1
            if decision.command_id is not None:
                self.commands.add(decision.command_id)
