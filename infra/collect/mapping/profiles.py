"""Profiles: those that ship with HARMONY, and the user's own in mapping files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from infra.collect.mapping.schema import ExporterProfile, FieldChoice, HistogramChoice, MappingFile, WorkloadRule
from infra.console.errors import HarmonyError
from infra.console.text import most_alike
from infra.settings.errors import explain
from infra.settings.yaml import SettingsFile, read_settings_file

SHIPPED = Path(__file__).with_name("profiles")
_Model = TypeVar("_Model", bound=BaseModel)


class Mapping(NamedTuple):
    """The profiles to read by, and the rules that name workloads."""

    profiles: tuple[ExporterProfile, ...]
    rules: tuple[WorkloadRule, ...]


def read_mapping(path: Path) -> MappingFile:
    """One mapping file.

    Raises:
        HarmonyError: unreadable or not as it must be; names file, line and key (exit code 2).
    """
    return _parsed(MappingFile, path)


@cache
def shipped_profiles() -> dict[str, ExporterProfile]:
    """By name, in alphabetical order."""
    files = [read_settings_file(path) for path in sorted(SHIPPED.glob("*.yaml"))]
    contents = {file.content["name"]: file.content for file in files}
    profiles = [_validated(ExporterProfile, file, _expanded(file.content, contents)) for file in files]
    return {profile.name: profile for profile in profiles}


def _expanded(content: dict[str, Any], contents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A shipped profile with what it takes over from the one that it is `like`.

    Its `rename` holds the beginning of a metric's name and those that stand in its place. The ways to obtain a field
    come once with each of them, in this order. Ways that need a metric of another name are not taken over.
    """
    own = {key: value for key, value in content.items() if key not in ("like", "rename")}
    if "like" not in content:
        return own
    ((start, others),) = content["rename"].items()
    model = ExporterProfile(**contents[content["like"]])
    ways_of = {
        part: {n: tuple(w for w in ways if _reads_only(w, start)) for n, ways in getattr(model, part).items()}
        for part in ("fields", "histograms")
    }
    taken = model.model_copy(update=ways_of).model_dump(mode="json", exclude_defaults=True)
    for part in ways_of:
        taken[part] = {
            name: [_renamed(way, start, other) for other in others for way in ways]
            for name, ways in taken[part].items()
        }
    return taken | own


def _reads_only(way: FieldChoice | HistogramChoice, start: str) -> bool:
    names = way.names() if isinstance(way, FieldChoice) else (way.metric,)
    return all(name.startswith(start) for name in names)


def _renamed(value: Any, start: str, other: str) -> Any:
    """The same value, in which every text that begins with `start` begins with `other`."""
    if isinstance(value, dict):
        return {key: _renamed(item, start, other) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, start, other) for item in value]
    is_metric = isinstance(value, str) and value.startswith(start)
    return other + value.removeprefix(start) if is_metric else value


def choose(names: Sequence[str] = (), files: Sequence[Path] = ()) -> Mapping:
    """The profiles to use: those named, else all that need not be named; those of files come in addition.

    A profile of a file replaces the shipped one of its name.

    Raises:
        HarmonyError: an unknown name, or a file that is not as it must be (exit code 2).
    """
    profiles = dict(shipped_profiles())
    own: dict[str, ExporterProfile] = {}
    rules: list[WorkloadRule] = []
    for path in files:
        mapping = read_mapping(path)
        rules += mapping.workloads
        for profile in mapping.profiles:
            if profile.name in own:
                raise HarmonyError(f"{path}: profile {profile.name} is given twice.", 2)
            own[profile.name] = profile
    profiles |= own
    for name in names:
        if name not in profiles:
            close = most_alike(name, profiles)
            hint = f"; did you mean {close}?" if close else f"; there are {', '.join(sorted(profiles))}."
            raise HarmonyError(f"--profile: there is no profile {name!r}{hint}", 2)
    chosen = set(names) | set(own) if names else {n for n, p in profiles.items() if not p.opt_in or n in own}
    return Mapping(tuple(profiles[name] for name in sorted(chosen)), tuple(rules))


def _parsed(model: type[_Model], path: Path) -> _Model:
    file = read_settings_file(path)
    return _validated(model, file, file.content)


def _validated(model: type[_Model], file: SettingsFile, content: dict[str, Any]) -> _Model:
    try:
        return model(**content)
    except ValidationError as error:
        raise explain(error, model, file, {}, {}) from None


# The known exporters, for people and for starting a mapping file.


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


def profile_yaml(name: str, mappings: Sequence[Path]) -> str:
    """One profile as the YAML of a mapping file.

    Raises:
        HarmonyError: there is none of that name (exit code 2).
    """
    profile: ExporterProfile = next(p for p in choose((name,), mappings).profiles if p.name == name)
    body = profile.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump({"profiles": [body]}, sort_keys=False, allow_unicode=True, width=120)
