"""The commented settings file that `harmony init` writes; made from the schema, so it cannot drift from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from infra.errors import HarmonyError
from infra.settings import Settings
from infra.settings_errors import section_of
from infra.settings_schema import AdvancedSection, Section

_HEAD = """\
# Settings of HARMONY. A line that begins with `# ` and a key shows a default: remove the `# ` (and that of the lines
# it is indented under) to change it. Flags and environment variables win over this file: HARMONY_STEP_S=5,
# HARMONY_ADVANCED__GUARDS__LEASE_STEPS=6.

"""

_WORKLOADS = """\
# What is scaled. A workload that is seen in the telemetry but not declared here is forecast and observed.
workloads:
  - id: prod/llm/chat-70b         # its name in the telemetry
    mode: observe                 # observe = decide and record only; act = publish commands
    target: {apiVersion: apps/v1, kind: Deployment, namespace: prod, name: chat-70b}
    replicas: {min: 1, max: 16}   # required for act, as are target and slo
    gpus_per_replica: 2
    price_per_gpu_hour: 2.5       # in any currency; only ratios matter
    slo: {ttft_s: 2.0, tpot_s: 0.2, objective: 0.99}
    # match: {namespace: prod, model_name: chat-70b}   # labels that name it in third-party telemetry
    # capacity_rps: 3.5           # requests/s one replica carries within the SLO, if known; else it is learned
    # lead_time_s: 120            # from command to serving replica, first guess
    # priority: 0                 # larger is served first when the fleet's GPUs run short
    # power_w_per_replica: 1200   # drawn by one replica, if known; else it is measured
"""


def example_yaml() -> str:
    """The whole file, as text."""
    lines: list[str] = [_HEAD]
    for name, field in Settings.model_fields.items():
        if name not in {"workloads", "advanced"}:
            lines.append(_commented(name, field, "") + "\n")
    lines += ["\n", _WORKLOADS, "\n", "# All else, with defaults that suit most fleets.\n", "# advanced:\n"]
    lines += _sections(AdvancedSection, "  ")
    return "".join(lines)


def _sections(model: type[Section], indent: str) -> Iterator[str]:
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


def write_example(path: Path, *, force: bool = False) -> None:
    """Write the file.

    Raises:
        HarmonyError: it exists and not `force` (exit code 2), or cannot be written.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(example_yaml())
    except FileExistsError as error:
        raise HarmonyError(f"{path} exists; --force replaces it.", 2) from error
    except OSError as error:
        raise HarmonyError(f"Cannot write {path}: {error.strerror}.") from error
