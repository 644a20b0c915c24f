"""Packages that only some collectors need: imported when used, with a clear word when absent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from infra.console.errors import HarmonyError


def need(module: str, purpose: str) -> Any:
    """The module.

    Raises:
        HarmonyError: it is not installed; says how to.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise HarmonyError(
            f"{purpose} needs a package that is not installed ({error.name or module}): "
            "pip install 'harmony-scaler[collect]'.",
            2,
        ) from None
