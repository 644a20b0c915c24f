"""The plug-ins that the settings choose for the workers, made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from operator import index
from typing import Any

import structlog
import torch

from agents.planning.rows import PolicyQuestion
from infra.console.errors import HarmonyError
from infra.plugins.guarded import Guarded, PluginFailed
from infra.settings.limits import PluginLimits
from infra.settings.load import Settings
from infra.settings.plugins import Plugin, find, identity
from model.baselines.pool import FallbackForecaster
from model.contract import ContextBatch, ForecastBatch, Forecaster
from streams.meter import Meter
from streams.records.limits import MAX_REPLICAS

# A forecaster of one's own before the built-in ones: asked first, held to the contract, replaced where it fails.


class PluginForecaster:
    """Implements `model.contract.Forecaster` by a plug-in.

    What it answers is checked for its shape, brought to the batch's device and into the indicators' physical bounds.
    Rows that are not finite are left as they are, for the forecaster behind it to answer.

    Raises:
        HarmonyError: the plug-in cannot be made, or lacks a member of the contract.
    """

    def __init__(
        self, plugin: Plugin, options: Mapping[str, Any], limits: PluginLimits, meter: Meter | None = None
    ) -> None:
        self._own = plugin.make(options)
        self._source = f"plugin:{plugin.name}"
        try:
            self._max_horizon, self._min_context = int(self._own.max_horizon), int(self._own.min_context)
            body = f"{identity('forecaster', plugin.name, options)}\x1f{self._own.fingerprint}"
            callable_ = callable(self._own.forecast)
        except (AttributeError, TypeError, ValueError) as error:
            raise HarmonyError(
                f"The forecaster {plugin.name!r} breaks the contract of docs/plugins.md: {error}.", 2
            ) from (error)
        if not callable_ or self._max_horizon < 1 or self._min_context < 1:
            raise HarmonyError(
                f"The forecaster {plugin.name!r} breaks the contract of docs/plugins.md: it needs a method forecast, "
                f"and max_horizon ({self._max_horizon}) and min_context ({self._min_context}) of at least 1.",
                2,
            )
        self._fingerprint = "plugin-" + hashlib.blake2b(body.encode(), digest_size=6).hexdigest()
        self._guarded = Guarded(plugin, limits, meter, prepare=lambda: torch.set_num_threads(1))

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def max_horizon(self) -> int:
        return self._max_horizon

    @property
    def min_context(self) -> int:
        return self._min_context

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        """Ask the plug-in.

        Raises:
            PluginFailed: it gave no answer that can be used.
        """
        return self._guarded.call(lambda: self._ask(batch, horizon, num_paths))

    def _ask(self, batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        # It may write into what it is given, also by mistake; others are asked with the same batch afterwards.
        given = {field.name: getattr(batch, field.name) for field in fields(batch)}
        copies: dict[str, Any] = {name: tensor.clone() for name, tensor in given.items() if torch.is_tensor(tensor)}
        own = replace(batch, **copies)
        with torch.inference_mode():
            paths = torch.as_tensor(self._own.forecast(own, horizon, num_paths).paths)
            expected_shape = (len(batch), num_paths, horizon, len(batch.indicators))
            if tuple(paths.shape) != expected_shape:
                raise ValueError(f"paths have the shape {tuple(paths.shape)}, not [B, S, H, N] = {expected_shape}")
            paths = paths.to(batch.values.device, torch.float32)
            # A NaN stays one; clamp passes it on.
            paths = paths.clamp(batch.lower.to(paths.device), batch.upper.to(paths.device))
        return ForecastBatch(paths, (self._source,) * len(batch), self._fingerprint)


# A policy of one's own as the engine asks it: within the limits, and the built-in plan where it fails.


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


def _checked(answers: Any, num_questions: int) -> list[int | None]:
    counts = [None if answer is None else index(answer) for answer in answers]
    if len(counts) != num_questions:
        raise ValueError(f"{len(counts)} answers to {num_questions} questions")
    wrong = [count for count in counts if count is not None and not 0 <= count <= MAX_REPLICAS]
    if wrong:
        raise ValueError(f"a count of {wrong[0]} replicas; 0 to {MAX_REPLICAS} can be")
    return counts


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
