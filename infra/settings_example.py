"""The commented settings file that `harmony init` writes; made from the schema, so it cannot drift from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from infra.console.errors import HarmonyError
from infra.settings.errors import section_of
from infra.settings.load import Settings
from infra.settings.schema import AdvancedSection
from infra.settings_section import Section

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
    lines: list[str] = [_HEAD]
    for name, field in Settings.model_fields.items():
        if chosen and name in chosen:
            lines.append(f"{f'{name}: {chosen[name]}'.ljust(46)} # {field.description}\n")
        elif name not in {"workloads", "advanced"}:
            lines.append(_commented(name, field, "") + "\n")
    lines += ["\n", workloads, "\n", "# All else, with defaults that suit most fleets.\n", "# advanced:\n"]
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
