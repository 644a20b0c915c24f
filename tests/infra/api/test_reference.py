"""docs/python-reference.md: current, and nothing public is left out."""

from __future__ import annotations

import inspect

import pytest

from infra import api
from infra.api import docs


def test_the_page_is_current() -> None:
    assert docs.PAGE.read_text(encoding="utf-8") == docs.page(), "python -m infra.api.docs"


@pytest.mark.parametrize("name", api.__all__)
def test_each_name_has_each_of_its_parameters_explained(name: str) -> None:
    page = docs.page()
    assert f"`{name}`" in page
    thing = getattr(api, name)
    if inspect.isclass(thing):
        return
    entry = page.split(f"## `{name}`\n")[1].split("\n## `")[0]
    explained = {word for row in entry.splitlines() if row.startswith("| `") for word in row.split("`")[1].split(", ")}
    assert {*inspect.signature(thing).parameters} <= explained
