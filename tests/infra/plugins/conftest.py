"""The example package, importable for the length of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.plugins.example import install_example


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that it is installed in."""
    directory = tmp_path / "site"
    directory.mkdir()
    install_example(directory)
    monkeypatch.syspath_prepend(directory)
    yield directory
    for name in [name for name in sys.modules if name.startswith("harmony_example_plugins")]:
        del sys.modules[name]
