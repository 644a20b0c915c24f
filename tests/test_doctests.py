"""The examples in the docstrings of the product give the results that they show."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_PROMPT: Final = re.compile(r"^\s*>>> ", re.MULTILINE)


def _files() -> list[str]:
    """The product files with an example, found by text, so that the others need no import."""
    packages = ("streams", "model", "agents", "infra")
    paths = (path for package in packages for path in sorted((_ROOT / package).rglob("*.py")))
    return [str(path.relative_to(_ROOT)) for path in paths if _PROMPT.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("file", _files())
def test_examples_hold(file: str) -> None:
    name = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not failed
    # An example outside a docstring, or in a function that the finder cannot see, would pass unread.
    assert attempted == len(_PROMPT.findall((_ROOT / file).read_text(encoding="utf-8")))
