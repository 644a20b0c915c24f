"""Writes docs/settings.md from the schema of the settings: `python -m infra.settings.docs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from infra.console.errors import HarmonyError
from infra.settings.errors import section_of
from infra.settings.load import Settings
from infra.settings.schema import AdvancedSection, Section

PAGE = Path(__file__).parents[2] / "docs/settings.md"

_HEAD = """# Settings

This page lists all keys of `harmony.yaml`. `python -m infra.settings.docs` writes it. `harmony init` writes a file with
each key and its default. A dozen matter to most users; the rest is under `advanced`.

* Precedence: flags, environment, file, defaults. The file is `--config`, else `$HARMONY_CONFIG`, else `./harmony.yaml`.
* The environment variable of a key is `HARMONY_` and its path in capitals with `__` between levels:
  `HARMONY_STEP_S=5`, `HARMONY_ADVANCED__GUARDS__LEASE_STEPS=6`. Lists and mappings are JSON. An unknown variable of
  that prefix is an error.
* An unknown key, a wrong type or a value out of range stops the command with one sentence and exit code 2. The sentence
  contains file, line, key and the remedy.
* `harmony run` with a simulated fleet or a recording has its own workloads, policy, steps and topics. It serves a page
  on this machine only, and starts a Kafka unless `--brokers` names one. `web_port` and the settings of the process
  apply there too.
* Every setting that can change a decision is part of the policy's fingerprint, and so of every decision id.

"""
_TYPE_NAMES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
    datetime: "instant, ISO 8601",
}
# What a key with a reader of its own takes, by what is made of it.
_READ: dict[Any, str] = {int: "time of day"}
_SIGNS = ((Ge, "ge", "≥"), (Gt, "gt", ">"), (Le, "le", "≤"), (Lt, "lt", "<"))


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "## At the top\n\n", *_table(Settings)]
    for path, text, model in _sections(Settings, ""):
        parts += [f"\n## `{path}`\n\n{text}\n\n", *_table(model)]
    return "".join(parts)


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Path, explanation and class of every section that has keys of its own, in the order of the file."""
    for name, field in model.model_fields.items():
        inner, many = _section_in(field.annotation)
        if inner is not None:
            path = f"{prefix}{field.alias or name}{'[]' if many else ''}"
            if any(_section_in(f.annotation)[0] is None for f in inner.model_fields.values()):
                yield path, field.description or "", inner
            yield from _sections(inner, f"{path}.")


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | takes | default | meaning |\n|---|---|---|---|\n"
    for name, field in model.model_fields.items():
        inner, many = _section_in(field.annotation)
        if inner is None:
            value_text, default = _value_text(field), _default(name, field)
        else:
            value_text, default = "list, see below" if many else "section, see below", "" if many else " "
        yield f"| `{field.alias or name}` | {value_text} | {default.strip()} | {_cell(field.description or '')} |\n"


def _section_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that a field holds, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    inner = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return next((section for section in map(_section_in, inner) if section[0] is not None), (None, False))
    if get_origin(annotation) in (tuple, list) and inner:
        return _section_in(inner[0])[0], True
    return None, False


def _value_text(field: FieldInfo) -> str:
    if field.annotation in _READ and any(isinstance(mark, BeforeValidator) for mark in field.metadata):
        return _READ[field.annotation]
    type_text = " or ".join(dict.fromkeys(_type_names(field.annotation)))
    bounds = [
        f"{sign} {getattr(mark, attribute):g}"
        for mark in field.metadata
        for kind, attribute, sign in _SIGNS
        if isinstance(mark, kind)
    ]
    return _cell(", ".join([type_text, *bounds]))


def _type_names(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if annotation is type(None):
        return
    if annotation in _TYPE_NAMES:
        yield _TYPE_NAMES[annotation]
    elif origin is Annotated:
        yield from _type_names(get_args(annotation)[0])
    elif origin is Literal:
        yield ", ".join(f"`{value}`" for value in get_args(annotation))
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _type_names(part)
    elif origin in (tuple, list):
        yield f"list of {next(_type_names(get_args(annotation)[0]), 'values')}"
    elif origin is dict:
        yield "mapping"
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield ", ".join(f"`{value.value}`" for value in annotation)
    else:
        yield "value"


def _default(name: str, field: FieldInfo) -> str:
    if name == "state_dir":
        return "`~/.local/state/harmony`"
    value = field.default_factory() if field.default_factory is not None else field.default  # type: ignore[call-arg]
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ("", (), {}, []):
        return "empty"
    return f"`{value if isinstance(value, str) else json.dumps(value, default=str)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


# The commented settings file that `harmony init` writes; made from the schema, so it cannot drift from it.


_SETTINGS_EXAMPLE_HEAD = """\
# Settings of HARMONY. A line that begins with `# ` and a key shows a default: remove the `# ` (and that of the lines
# it is indented under) to change it. Flags and environment variables win over this file: HARMONY_STEP_S=5,
# HARMONY_ADVANCED__GUARDS__LEASE_STEPS=6.

"""

_WORKLOADS = """\
# Workloads to scale. A workload that is seen in the telemetry but not declared here is forecast and observed.
workloads:
  - id: prod/llm/chat-70b         # its name in the telemetry
    mode: observe                 # observe = decide and record only; act = publish commands
    target: {apiVersion: apps/v1, kind: Deployment, namespace: prod, name: chat-70b}
    replicas: {min: 1, max: 16}   # required for act, as are target and slo
    gpus_per_replica: 2
    price_per_gpu_hour: 2.5       # in any currency; only ratios matter
    # gpu_type: h100              # any name; on another GPU, what one replica does is learned anew
    slo: {ttft_s: 2.0, tpot_s: 0.2, objective: 0.99}
    # slo: {classes: [{name: chat, ttft_s: 1, objective: 0.995}, {name: bulk, ttft_s: 20, epsilon: 0.05}]}   # instead
    # match: {namespace: prod, model_name: chat-70b}   # labels that name it in third-party telemetry
    # capacity_rps: 3.5           # requests/s one replica carries within the SLO, if known; else it is learned.
    # capacity_off_by: 2.2        # ... and how far that may be off (`harmony capacity` finds both)
    # role: prefill               # or decode: a pool that does one half of the work, with capacity_tokens_per_s
    # lead_time_s: 120            # from command to serving replica, first guess
    # priority: 0                 # larger is served first when the fleet's GPUs run short
    # power_w_per_replica: 1200   # drawn by one replica at full load, for the fleet's ceiling
    # batch: {jobs: [{name: nightly, tokens: 2.0e+8, from: "22:00", until: "06:00"}]}   # beside what sources say
    # guards: {stabilization_down_s: 600, tolerance_ratio: 0.05}   # its own pace, where advanced.guards is not right
    # zero: {idle_s: 600, risk: 0.05}   # where replicas.min is 0: how the last replica goes
    # schedule:                   # narrower bounds at certain times, ready when they begin
    #   time_zone: Europe/Berlin
    #   calendar:
    #     - {name: office hours, days: weekdays, from: "08:00", until: "20:00", min: 4}
    #   events:
    #     - {name: launch, from: "2027-03-01T18:00", until: "2027-03-01T22:00", load_factor: 3}
"""


def example_yaml(chosen: Mapping[str, str] | None = None, workloads: str = _WORKLOADS) -> str:
    """The whole file, as text.

    Args:
        chosen: values of keys at the top that are set, not shown as defaults.
        workloads: the section of that name.
    """
    lines: list[str] = [_SETTINGS_EXAMPLE_HEAD]
    for name, field in Settings.model_fields.items():
        if chosen and name in chosen:
            lines.append(f"{f'{name}: {chosen[name]}'.ljust(46)} # {field.description}\n")
        elif name not in {"workloads", "advanced"}:
            lines.append(_commented(name, field, "") + "\n")
    lines += ["\n", workloads, "\n", "# All else, with defaults that suit most fleets.\n", "# advanced:\n"]
    lines += _settings_example_sections(AdvancedSection, "  ")
    return "".join(lines)


def _settings_example_sections(model: type[Section], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            yield f"{f'# {indent}{name}:'.ljust(46)} # {field.description}\n"
            for key, inner in section.model_fields.items():
                yield _commented(key, inner, indent + "  ") + "\n"


def _commented(name: str, field: FieldInfo, indent: str) -> str:
    text = f"# {indent}{name}: {_literal(field, name)}"
    return f"{text.ljust(46)} # {field.description}"


def _literal(field: FieldInfo, name: str) -> str:
    if name == "state_dir":
        return "~/.local/state/harmony"
    value: Any = field.default
    return "" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def write_example(path: Path, text: str | None = None, *, force: bool = False) -> None:
    """Write the file, `example_yaml()` unless another text is given.

    Raises:
        HarmonyError: it exists and not `force` (exit code 2), or cannot be written.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(example_yaml() if text is None else text)
    except FileExistsError as error:
        raise HarmonyError(f"{path} exists; --force replaces it.", 2) from error
    except OSError as error:
        raise HarmonyError(f"Cannot write {path}: {error.strerror}.") from error


if __name__ == "__main__":
    main()
