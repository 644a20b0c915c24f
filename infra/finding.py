"""One line of `harmony doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `remedy` is empty when nothing is to be done."""

    check: str
    status: Literal["ok", "note", "fail"]
    detail: str
    remedy: str = ""
