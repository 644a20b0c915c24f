"""A fleet that reads its size from files: one per workload, in a directory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harmony.agents.records import Target
from harmony.infra.actuate.actuator import NotApplied, ReplicaChange


class Directory:
    """Options: path."""

    name = "directory"
    done = "applied"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._path = Path(options["path"])

    async def observe(self, workload: str, target: Target, expected: int | None, in_force: int | None) -> int:
        """The number in the file; a missing file is not an empty fleet."""
        return await asyncio.to_thread(self._read, workload)

    async def apply(self, change: ReplicaChange) -> str:
        """Write it in one step, so that nobody reads half a number."""
        if not change.still_wanted():
            raise NotApplied("no longer wanted", sure=True)
        await asyncio.to_thread(self._write, change.workload, change.replicas)
        return str(self._file(change.workload))

    def _file(self, workload: str) -> Path:
        return self._path / quote(workload, safe="")

    def _read(self, workload: str) -> int:
        try:
            return int(self._file(workload).read_text())
        except (OSError, ValueError) as error:
            raise NotApplied(f"cannot tell the size: {error}", sure=True) from error

    def _write(self, workload: str, replicas: int) -> None:
        unfinished = self._file(workload).with_suffix(".new")
        try:
            unfinished.write_text(f"{replicas}\n")
            unfinished.replace(self._file(workload))
        except OSError as error:
            raise NotApplied(str(error), sure=True) from error
