"""The settings in force, flat and without secrets, for the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.settings.load import Settings

# What a plug-in is given may be anything, secrets included.
_KEYS_ONLY = "advanced.plugins.options."
_HIDDEN = "(set)"


def settings_view(settings: Settings) -> dict[str, Any]:
    """Every key with its value as text, and whether it differs from the default; secrets are starred out."""
    changed = {key for key, _ in _flat(settings.model_dump(mode="json", by_alias=True, exclude_defaults=True))}
    rows = [
        {"key": key, "value": _HIDDEN if key.startswith(_KEYS_ONLY) else _text(value), "changed": key in changed}
        for key, value in _flat(settings.model_dump(mode="json", by_alias=True))
    ]
    return {"policy": settings.policy.fingerprint(), "settings": rows}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{prefix}{name}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{key}.")
        elif isinstance(inner, list) and inner and all(isinstance(item, dict) for item in inner):
            for at, item in enumerate(inner):
                yield from _flat(item, f"{key}[{item.get('id') or item.get('name') or at}].")
        else:
            yield key, inner


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
