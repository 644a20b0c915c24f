"""The known exporters, for people and for starting a mapping file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.collect.mapping.profiles import choose, shipped_profiles
from infra.collect.mapping.schema import Profile


def listed(mappings: Sequence[Path]) -> tuple[list[dict[str, Any]], int]:
    """All profiles, those of files included, and how many workload rules the files hold."""
    chosen = choose((), mappings)
    profiles = {**shipped_profiles(), **{p.name: p for p in chosen.profiles}}
    return [
        {
            "name": profile.name + (" (opt-in)" if profile.opt_in else ""),
            "kind": profile.kind,
            "about": profile.about,
            "fields": [*profile.fields, *profile.histograms],
        }
        for _, profile in sorted(profiles.items())
    ], len(chosen.rules)


def shown(name: str, mappings: Sequence[Path]) -> str:
    """One profile as the YAML of a mapping file.

    Raises:
        HarmonyError: there is none of that name (exit code 2).
    """
    profile: Profile = next(p for p in choose((name,), mappings).profiles if p.name == name)
    body = profile.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump({"profiles": [body]}, sort_keys=False, allow_unicode=True, width=120)
