"""Flags and output habits that commands share: data on stdout, talk on stderr."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

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


def say(text: str) -> None:
    """A word to the person at the terminal, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Data for a program, on stdout."""
    print(json.dumps(value, default=str), flush=True)


def comma_list(text: str) -> list[str]:
    """The words between the commas, empty ones left out."""
    return [word.strip() for word in text.split(",") if word.strip()]
