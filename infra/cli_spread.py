"""Options that several commands share, declared once: on the fields of a dataclass that a command takes as `told`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command, for Typer, with the fields of its parameter `told` (a dataclass) in the place of that parameter."""
    hints = get_type_hints(command, include_extras=True)
    told = hints["told"]
    shared_hints = get_type_hints(told, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in signature(command).parameters.values() if p.name != "told"]
    shared = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=shared_hints[f.name])
        for f in fields(told)
    ]

    @wraps(command)
    def called(**given: object) -> None:
        command(told=told(**{f.name: given.pop(f.name) for f in fields(told)}), **given)

    parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own] + shared
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called
