"""Finds the plug-ins that installed distributions declare as entry points, and makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import orjson

from infra.console.errors import HarmonyError
from infra.settings.limits import PluginKind

GROUPS: dict[PluginKind, str] = {
    "forecaster": "harmony.forecasters",
    "policy": "harmony.policies",
    "actuator": "harmony.actuators",
    "decoder": "harmony.decoders",
}
_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,49}$")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point. `distribution` and `version` are those of the package that declares it."""

    kind: PluginKind
    name: str
    distribution: str
    version: str
    entry: EntryPoint

    def make(self, options: Mapping[str, Any]) -> Any:
        """Import it and call its factory.

        Raises:
            HarmonyError: either fails; says which package it is of.
        """
        try:
            return self.entry.load()(dict(options))
        except Exception as error:
            raise HarmonyError(
                f"The {self.kind} {self.name!r} of {self.distribution} {self.version} cannot be made from "
                f"{self.entry.value} ({type(error).__name__}: {error}); mend or uninstall it, or choose another.",
                2,
            ) from error


def installed(kind: PluginKind | None = None) -> list[Plugin]:
    """All plug-ins of this environment, by kind and name; nothing is imported."""
    plugins = [
        Plugin(k, entry.name, entry.dist.name if entry.dist else "?", entry.dist.version if entry.dist else "?", entry)
        for k, group in GROUPS.items()
        if kind in (None, k)
        for entry in entry_points(group=group)
    ]
    return sorted(plugins, key=lambda p: (p.kind, p.name, p.distribution))


def identity(kind: PluginKind, name: str, options: Mapping[str, Any]) -> str:
    """Names what a plug-in computes, for fingerprints: name, package, version, options; empty for no name."""
    if not name:
        return ""
    options_json = orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS).decode()
    packages = " ".join(f"{p.distribution} {p.version}" for p in installed(kind) if p.name == name)
    # Commands that do not decide run where it is not installed; workers refuse to start there.
    return f"{name} {packages or '?'} {options_json}"


def find(kind: PluginKind, name: str) -> Plugin:
    """The one plug-in of this kind and name.

    Raises:
        HarmonyError: there is none, or there are several, or the name is none (exit code 2).
    """
    if not _NAME.match(name):
        raise HarmonyError(
            f"{name!r} is no name of a plug-in: lower-case letters, digits, - and _, beginning with a letter.", 2
        )
    all_of_kind = installed(kind)
    fitting = [plugin for plugin in all_of_kind if plugin.name == name]
    if not fitting:
        names_text = ", ".join(plugin.name for plugin in all_of_kind) or "none"
        raise HarmonyError(
            f"No {kind} {name!r} is installed (there are: {names_text}). Install the package that declares it under "
            f"[project.entry-points.{GROUPS[kind]!r}] into the environment of HARMONY.",
            2,
        )
    if len(fitting) > 1:
        packages = " and ".join(plugin.distribution for plugin in fitting)
        raise HarmonyError(f"Several packages declare a {kind} {name!r}: {packages}. Uninstall all but one.", 2)
    return fitting[0]
