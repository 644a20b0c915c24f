"""A policy of one's own as the engine asks it: within the limits, and the built-in plan where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from agents.planning.rows import PolicyQuestion
from infra.console.errors import HarmonyError
from infra.plugins.guarded import Guarded, PluginFailed
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin
from streams.meter import Meter
from streams.records.limits import MAX_REPLICAS


class PluginProposer:
    """Implements `agents.planning.rows.Proposer` by a plug-in with a method `propose(questions)`.

    Raises:
        HarmonyError: the plug-in cannot be made, or has no such method.
    """

    def __init__(
        self, plugin: Plugin, options: Mapping[str, Any], limits: PluginLimits, meter: Meter | None = None
    ) -> None:
        self._own = plugin.make(options)
        if not callable(getattr(self._own, "propose", None)):
            raise HarmonyError(
                f"The policy {plugin.name!r} breaks the contract of docs/plugins.md: no method propose.", 2
            )
        self._name = f"plugin:{plugin.name}"
        self._guarded = Guarded(plugin, limits, meter)

    @property
    def name(self) -> str:
        return self._name

    def propose(self, questions: Sequence[PolicyQuestion]) -> list[int | None]:
        """A count per question; None for all where the plug-in gave no answer that can be used."""
        try:
            return self._guarded.call(lambda: _checked(self._own.propose(list(questions)), len(questions)))
        except PluginFailed:
            return [None] * len(questions)


def _checked(answers: Any, wanted: int) -> list[int | None]:
    counts = [None if answer is None else index(answer) for answer in answers]
    if len(counts) != wanted:
        raise ValueError(f"{len(counts)} answers to {wanted} questions")
    wrong = [count for count in counts if count is not None and not 0 <= count <= MAX_REPLICAS]
    if wrong:
        raise ValueError(f"a count of {wrong[0]} replicas; 0 to {MAX_REPLICAS} can be")
    return counts
