"""The plug-ins that the settings choose for the workers, made."""

from __future__ import annotations

import structlog

from infra.plugins.forecaster import PluginForecaster
from infra.plugins.guarded import PluginFailed
from infra.plugins.policy import PluginProposer
from infra.settings.limits import PluginLimits
from infra.settings.load import Settings
from infra.settings.plugins import find
from model.baselines.pool import FallbackForecaster
from model.contract import Forecaster
from streams.meter import Meter

log = structlog.get_logger()


def with_own_forecaster(settings: Settings, behind: Forecaster, meter: Meter) -> Forecaster:
    """The chosen forecaster in front of the built-in ones, or those alone.

    Raises:
        HarmonyError: it is not installed, or cannot be made.
    """
    chosen = settings.advanced.plugins
    if not chosen.forecaster:
        return behind
    plugin = find("forecaster", chosen.forecaster)
    own = PluginForecaster(plugin, chosen.options.get(plugin.kind, {}), _limits(settings), meter)

    def failed(error: Exception) -> None:
        if not isinstance(error, PluginFailed):  # those are logged where they happen
            log.warning("plugin_failed", kind=plugin.kind, name=plugin.name, reason=str(error))

    return FallbackForecaster(own, behind, on_error=failed)


def own_policy(settings: Settings, meter: Meter) -> PluginProposer | None:
    """The chosen policy.

    Raises:
        HarmonyError: it is not installed, or cannot be made.
    """
    chosen = settings.advanced.plugins
    if not chosen.policy:
        return None
    plugin = find("policy", chosen.policy)
    return PluginProposer(plugin, chosen.options.get(plugin.kind, {}), _limits(settings), meter)


def _limits(settings: Settings) -> PluginLimits:
    chosen = settings.advanced.plugins
    return PluginLimits(chosen.time_limit_s, chosen.failures, chosen.pause_calls)
