"""What a settings file says is what YAML's own reader makes of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.settings.yaml import read_settings_file
from tests.infra.settings.yaml_documents import NAMES, SCALARS, nested


def read(text: str) -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "harmony.yaml"
        path.write_text(text, encoding="utf-8")
        return read_settings_file(path).content


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.recursive(SCALARS, nested), max_size=4))
def test_any_document(content: dict[str, Any]) -> None:
    assert read(yaml.safe_dump(content)) == content


@pytest.mark.parametrize(
    "text",
    [
        "base: &b {min: 1, max: 2}\nworkloads:\n- {id: a, replicas: {<<: *b, step: 9}}\n",
        "base: &b [1, 2]\nother: *b\n",
        "days: {1: monday, on: tuesday}\n",
        "when: 2026-11-24\nratio: 1_000.5\nname: '007'\nnone: ~\nflag: yes\n",
        "set: !!set {a, b}\nbinary: !!binary aGFybW9ueQ==\n",
    ],
)
def test_what_is_more_than_lists_keys_and_values(text: str) -> None:
    assert read(text) == yaml.safe_load(text)
