"""A forecaster of one's own before the built-in ones: asked first, held to the contract, replaced where it fails."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from infra.console.errors import HarmonyError
from infra.plugins.guarded import Guarded
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin, identity
from model.contract import ContextBatch, ForecastBatch
from streams.meter import Meter


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
        copies: dict[str, Any] = {name: told.clone() for name, told in given.items() if torch.is_tensor(told)}
        own = replace(batch, **copies)
        with torch.inference_mode():
            paths = torch.as_tensor(self._own.forecast(own, horizon, num_paths).paths)
            wanted = (len(batch), num_paths, horizon, len(batch.indicators))
            if tuple(paths.shape) != wanted:
                raise ValueError(f"paths have the shape {tuple(paths.shape)}, not [B, S, H, N] = {wanted}")
            paths = paths.to(batch.values.device, torch.float32)
            # A NaN stays one; clamp passes it on.
            paths = paths.clamp(batch.lower.to(paths.device), batch.upper.to(paths.device))
        return ForecastBatch(paths, (self._source,) * len(batch), self._fingerprint)
