"""The example package of docs/examples, installed by hand: copied beside the metadata that an installer would write."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/harmony-example-plugins"


def install_example(into: Path) -> None:
    """The package as `pip install` would leave it there."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "harmony_example_plugins", into / "harmony_example_plugins")
    write_metadata(into, project["name"], project["version"], project["entry-points"])


def write_metadata(into: Path, name: str, version: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """What `importlib.metadata` reads of an installed distribution."""
    info = into / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{entry} = {value}" for entry, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
