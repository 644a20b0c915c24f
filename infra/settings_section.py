"""What every section of the settings file is made of."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping of the file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def key(default: Any, explanation: str, **bounds: Any) -> Any:
    """A key with its default, its one line of explanation and its bounds."""
    return Field(default, description=explanation, **bounds)
