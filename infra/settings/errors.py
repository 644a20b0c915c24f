"""Error messages of the settings: file and line, key, what is wrong, and the nearest known key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from infra.console.errors import HarmonyError
from infra.console.text import nearest, printable
from infra.settings.yaml import SettingsFile, key_text

ENV_PREFIX = "HARMONY_"
CONFIG_VARIABLE = "HARMONY_CONFIG"
# Read elsewhere: recorded telemetry for tests and `harmony evaluate`, the secret of `harmony actuate webhook`,
# Faust's own prefix, the test suite.
_RESERVED = ("HARMONY_DATA_DIR", "HARMONY_WEBHOOK_SECRET", CONFIG_VARIABLE)
_RESERVED_PREFIXES = ("HARMONY_FAUST_", "HARMONY_TEST_")
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$")
_LINK_VALUE = re.compile(r"^(tcp|udp|sctp)://")
_MAX_MISTAKES = 8


def check_environment(model: type[BaseModel], environ: Mapping[str, str]) -> None:
    """Refuse variables with our prefix that set nothing, and those that Kubernetes set for a Service.

    Raises:
        HarmonyError: exit code 2.
    """
    names = set(variables(model))
    for name, value in sorted(environ.items()):
        upper = name.upper()
        if not upper.startswith(ENV_PREFIX) or upper in _RESERVED or upper.startswith(_RESERVED_PREFIXES):
            continue
        if upper in names:
            if _LINK_VALUE.match(value):
                raise HarmonyError(
                    f"{name} is {value!r}, which Kubernetes sets for a Service of that name. Put `enableServiceLinks: "
                    "false` in the pod, or rename the Service.",
                    2,
                )
        elif not _SERVICE_LINK.search(upper):
            hint = nearest(upper, names)
            raise HarmonyError(f"The environment variable {name} sets nothing{hint}.", 2)


def variables(model: type[BaseModel], prefix: str = ENV_PREFIX) -> Iterator[str]:
    """Names of the environment variables that set a field of the model or of its sections."""
    for name, field in model.model_fields.items():
        yield prefix + name.upper()
        section = section_of(field.annotation)
        if section is not None:
            yield from variables(section, f"{prefix}{name.upper()}__")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds, also when optional; None for a value or a sequence."""
    for candidate in (annotation, *(get_args(annotation) if type(None) in get_args(annotation) else ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def explain(
    error: ValidationError,
    model: type[BaseModel],
    file: SettingsFile,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any],
) -> HarmonyError:
    """One line for each mistake."""
    mistakes = error.errors(include_url=False, include_context=False)
    lines = [
        f"{_location(mistake['loc'], file, environ, overrides)}: {_sentence(mistake, model)}"
        for mistake in mistakes[:_MAX_MISTAKES]
    ]
    if len(mistakes) > _MAX_MISTAKES:
        lines.append(f"... and {len(mistakes) - _MAX_MISTAKES} more.")
    return HarmonyError("\n".join(lines), 2)


def _location(
    path: Sequence[str | int], file: SettingsFile, environ: Mapping[str, str], overrides: Mapping[str, Any]
) -> str:
    if _is_given(path, overrides):
        return "command line"
    names = {name.upper(): name for name in environ}
    for length in range(len(path), 0, -1):
        variable = ENV_PREFIX + "__".join(str(part) for part in path[:length]).upper()
        if variable in names:
            return f"environment variable {names[variable]}"
    return file.where(path)


def _is_given(path: Sequence[str | int], overrides: Mapping[str, Any]) -> bool:
    """Return whether a flag gave this very value, and not only another key of the same section."""
    value: Any = overrides
    for part in path:
        if not isinstance(value, Mapping):
            break
        value = value.get(part)
    return value is not None and not isinstance(value, Mapping)


def _sentence(mistake: Any, model: type[BaseModel]) -> str:
    path: tuple[str | int, ...] = mistake["loc"]
    key = key_text(path)
    if mistake["type"] == "extra_forbidden":
        section = _section_at(model, path[:-1])
        names = {field.alias or name for name, field in section.model_fields.items()} if section else set()
        return f"unknown key {printable(key, 120)}{nearest(str(path[-1]), names)}."
    if mistake["type"] == "missing":
        return f"{key} is missing."
    if mistake["type"] == "string_pattern_mismatch":
        return f"{key}: {_value_text(mistake['input'])} is not possible{_meaning(model, path)}"
    message = str(mistake["msg"]).removeprefix("Value error, ").rstrip(".")
    if mistake["type"] in {"value_error", "assertion_error"}:
        return f"{key}: {message}." if key else f"{message}."
    input_text = "" if _is_secret(model, path) else f", got {_value_text(mistake['input'])}"
    return f"{key}: {message[:1].lower()}{message[1:]}{input_text}."


def _value_text(value: Any) -> str:
    """Return the value for a message; of a list or mapping only the kind, since it may hold a secret."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else printable(repr(value), 80)


def _is_secret(model: type[BaseModel], path: Sequence[str | int]) -> bool:
    """Return whether the value must not be shown; some write a password where its file's name belongs."""
    field = _field_at(model, path)
    annotation = field.annotation if field else None
    return SecretStr in (annotation, *get_args(annotation)) or any("password" in str(part) for part in path)


def _meaning(model: type[BaseModel], path: Sequence[str | int]) -> str:
    field = _field_at(model, path)
    return f": {field.description}" if field and field.description else "."


def _field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    section = _section_at(model, path[:-1]) if path else None
    return section.model_fields.get(str(path[-1])) if section else None


def _section_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int) or section is None:
            continue
        field = next((f for name, f in section.model_fields.items() if part in (name, f.alias)), None)
        annotation = field.annotation if field else None
        section = section_of(annotation) or next((s for s in map(section_of, get_args(annotation)) if s), None)
    return section
