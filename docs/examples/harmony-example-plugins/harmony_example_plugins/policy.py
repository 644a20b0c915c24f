"""Replicas come in pairs: the built-in proposal, rounded up to an even number within the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harmony.agents.planning.rows import PolicyQuestion


class EvenNumbers:
    """No options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"unknown options: {', '.join(sorted(options))}")

    def propose(self, questions: Sequence[PolicyQuestion]) -> list[int | None]:
        """None leaves the built-in plan as it is."""
        return [self._one(question) for question in questions]

    def _one(self, question: PolicyQuestion) -> int | None:
        count = question.plan.proposed
        if count is None or count % 2 == 0 or count + 1 > question.spec.max_replicas:
            return None
        return count + 1
