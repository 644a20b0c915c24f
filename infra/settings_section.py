"""What every section of the settings file is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.console.text import printable

# Seconds beyond it have no 64-bit count of milliseconds; nothing that is meant comes near.
MOST = 1e15


class Section(BaseModel):
    """A mapping of the file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, int | float) and abs(value) > MOST:
            # An integer may have more digits than a float can tell.
            raise ValueError(f"must lie within -{MOST:g} and {MOST:g}, got {printable(str(value), 40)}")
        if isinstance(value, str):
            check_text(value)
        return value


def key(default: Any, explanation: str, **bounds: Any) -> Any:
    """A key with its default, its one line of explanation and its bounds."""
    return Field(default, description=explanation, **bounds)


def check_text(text: str) -> None:
    """Raises ValueError for a NUL, which ends a path or a name for the system below."""
    if "\0" in text:
        raise ValueError("must not hold a NUL character")


def check_unique(names: Iterable[str], what: str = "") -> None:
    """Raises ValueError for the first name that comes again; `what` says of what it is the name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what}{name!r} is declared twice")
        seen.add(name)
