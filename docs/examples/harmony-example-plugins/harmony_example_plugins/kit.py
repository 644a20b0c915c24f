"""What `harmony actuate check --python harmony_example_plugins.kit:subject` runs: the directory under the kit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from harmony.infra.actuate.conformance.kit import ABILITIES
from harmony.infra.actuate.conformance.subjects import ControllerSubject
from harmony.infra.actuate.controller import CommandController
from harmony_example_plugins.actuator import Directory


class Files:
    """A world for the kit: counts as the files have them."""

    abilities = frozenset(ABILITIES) - {"answers"}

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory()

    async def open(self, replicas: Mapping[str, int]) -> None:
        for workload, count in replicas.items():
            await self.change(workload, count)

    def actuator(self, clock: Callable[[], int]) -> Directory:
        return Directory({"path": self._home.name})

    async def settle(self, controller: CommandController) -> None:
        pass

    async def replicas(self, workload: str) -> int:
        return int(self._file(workload).read_text())

    async def change(self, workload: str, replicas: int) -> None:
        self._file(workload).write_text(str(replicas))

    async def close(self) -> None:
        for file in Path(self._home.name).iterdir():
            file.unlink()

    def _file(self, workload: str) -> Path:
        return Path(self._home.name) / quote(workload, safe="")


def subject() -> ControllerSubject:
    """A new one for each case."""
    return ControllerSubject(Files())
