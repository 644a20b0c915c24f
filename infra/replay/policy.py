"""The one interface of every policy in a replay."""

from __future__ import annotations

from typing import Protocol

from infra.lab.replay.view import View


class ScalingPolicy(Protocol):
    """Asked every `period_s` how many replicas there shall be; `looks_back_s` is how much of the past it reads."""

    @property
    def period_s(self) -> float: ...

    @property
    def looks_back_s(self) -> float: ...

    def wanted(self, view: View) -> int: ...
