"""The quick reader of YAML says what the thorough one says, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.settings import yaml as plain_yaml
from infra.settings.yaml import MAX_LEVELS, NotPlainError, load_yaml, read_plain
from tests.infra.settings.yaml_documents import SCALARS, nested

DOCUMENTS = st.recursive(SCALARS, nested, max_leaves=12)
# Of these most that can be told apart by a reader of YAML is made.
PIECES = st.sampled_from(
    ["a", "b", "on", "~", "1_0", "0x1f", "1:30", ".inf", "2026-11-24", "<<", "=", "!!str ", "!x ", "! ", "&a ", "*a",
     "'q'", '"\\n"', "- ", "? ", ": ", ", ", "[", "]", "{", "}", "\n", "\n  ", "\n- ",
     "|\n  t", "#c\n", "---\n", "...\n", "%TAG ! x\n"]
)  # fmt: skip


def typed(said: Any) -> Any:
    """With the kinds of all values, for 1, 1.0 and true are equal."""
    if isinstance(said, list):
        return [typed(entry) for entry in said]
    if isinstance(said, dict):
        return {key: typed(value) for key, value in said.items()}
    return type(said), repr(said)


@given(DOCUMENTS, st.booleans())
def test_a_plain_document_is_read_by_it(document: Any, flow: bool) -> None:
    text = yaml.safe_dump(document, default_flow_style=flow)
    assert typed(read_plain(text)) == typed(yaml.safe_load(text))


@given(st.lists(PIECES, max_size=24).map("".join))
@example("a: &b [1]\nc: *b\n")
@example("a: {<<: {b: 1}}\n")
@example("--- a\n--- b\n")
@example("a: =\n")
@example("")
@example("# nothing\n")
def test_whatever_it_reads_the_thorough_reader_reads_alike(text: str) -> None:
    try:
        said = read_plain(text)
    except NotPlainError:
        return
    assert typed(said) == typed(load_yaml(text, Path("some.yaml"))[1])


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 1\n", "{a: 1, 'a': 2}", "1: one", "[a]: b", "? {a: b}\n: c", "a: &x 1", "&x a", "a: !!str 1",
        "a: ! 1", "<<: {a: 1}", "a: [", "a: 2026-13-45", "a: " + "9" * 5_000, "a\n---\nb", "a: \x07",
        "[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1), "a: " + "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_more_or_less_than_plain_is_left_to_the_thorough_reader(text: str) -> None:
    with pytest.raises(NotPlainError):
        read_plain(text)


@given(DOCUMENTS, st.integers(0, 20))
def test_it_reads_as_many_values_as_the_thorough_reader(document: Any, most: int) -> None:
    text = yaml.safe_dump(document)

    def reads(read: Any) -> bool:
        try:
            read()
        except (NotPlainError, HarmonyError):
            return False
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infra.settings.yaml.MAX_NODES", most)
        assert reads(lambda: read_plain(text)) == reads(lambda: load_yaml(text, Path("some.yaml")))


def test_the_same_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: [1, 2.5, yes, ~, 'no', 2026-11-24]\nb: {c: 0x1f}\n"
    expected = read_plain(text)
    monkeypatch.delattr(plain_yaml.yaml, "CSafeLoader", raising=False)
    assert typed(read_plain(text)) == typed(expected)
