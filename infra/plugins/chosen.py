"""Whether the plug-ins that the settings choose are installed."""

from __future__ import annotations

from infra.settings.load import Settings
from infra.settings.plugins import find


def require_chosen(settings: Settings) -> None:
    """See that what is chosen is installed: the policy's version is part of every decision's id.

    Raises:
        HarmonyError: it is not (exit code 2).
    """
    chosen = settings.advanced.plugins
    if chosen.forecaster:
        find("forecaster", chosen.forecaster)
    if chosen.policy:
        find("policy", chosen.policy)
