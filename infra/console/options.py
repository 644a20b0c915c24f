"""Flags and output habits that commands share: data on stdout, talk on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

BrokersOption = Annotated[
    str | None,
    typer.Option("--brokers", "-b", help="Kafka, host:port; default: HARMONY_BROKERS or a running `harmony run`."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings file; default: HARMONY_CONFIG or ./harmony.yaml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def finite(value: float | None) -> float | None:
    """Callback of options that are numbers: none may be infinite, or no number, which bounds let pass.

    Raises:
        BadParameter: it is (exit code 2).
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value:g} is no finite number.")
    return value


def replica_count(value: int) -> int:
    """Callback of arguments that are replicas of one workload: actuators refuse more than what telemetry may tell of.

    Raises:
        BadParameter: there are more (exit code 2).
    """
    from streams.records.limits import MAX_REPLICAS  # numpy stands behind it, which `--help` does without

    if value > MAX_REPLICAS:
        raise typer.BadParameter(f"{value} is more than the {MAX_REPLICAS} replicas that one workload may have.")
    return value


def writable(ctx: typer.Context, value: Path | None) -> Path | None:
    """Callback of options that name a file for results: those of hours must not be lost to a place that takes none.

    Raises:
        BadParameter: nothing can be written there (exit code 2).
    """
    if value is not None and value != Path("-") and not ctx.resilient_parsing:  # resilient: the shell completes words
        _try_to_write(value, value)
    return value


def writable_folder(ctx: typer.Context, value: Path | None) -> Path | None:
    """The same of a folder, which is made.

    Raises:
        BadParameter: nothing can be written into it (exit code 2).
    """
    if value is not None and not ctx.resilient_parsing:
        _try_to_write(value / ".writable", value)
    return value


def _try_to_write(file: Path, named: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        existed = file.exists()
        file.open("ab").close()  # leaves what is there as it is
        if not existed:
            file.unlink()
    except OSError as error:
        raise typer.BadParameter(f"cannot write {named} ({error.strerror or error}).") from None


ReportOption = Annotated[
    Path | None, typer.Option("--json", callback=writable, help="Write the report there; - for stdout.")
]


def say(text: str) -> None:
    """A word to the person at the terminal, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Data for a program, on stdout."""
    print(json.dumps(value, default=str), flush=True)


def comma_list(text: str) -> list[str]:
    """The words between the commas, empty ones left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


# Options that several commands share, declared once: on the fields of a dataclass that a command takes as `shared`.


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command, for Typer, with the fields of its parameter `shared`, a dataclass, in place of the parameter."""
    hints = get_type_hints(command, include_extras=True)
    options_type = hints["shared"]
    shared_hints = get_type_hints(options_type, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in signature(command).parameters.values() if p.name != "shared"]
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=shared_hints[f.name])
        for f in fields(options_type)
    ]

    @wraps(command)
    def called(**given: object) -> None:
        command(shared=options_type(**{f.name: given.pop(f.name) for f in fields(options_type)}), **given)

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own] + shared
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called
