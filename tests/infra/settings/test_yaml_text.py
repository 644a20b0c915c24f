"""YAML that does harm: refused in one sentence, at once, before anything is built of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.sources.scrape import read_targets
from infra.console.errors import HarmonyError
from infra.settings import yaml as yaml_text
from infra.settings.yaml import MAX_LEVELS, load_yaml, read_settings_file

FILE = Path("some.yaml")
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 11))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 200))


def refusal(text: str) -> str:
    with pytest.raises(HarmonyError) as refused:
        load_yaml(text, FILE)
    assert refused.value.exit_code == 2
    assert "\n" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "some.yaml:7: more than 1,000,000 values, with what aliases repeat"),
        ("a: " + "[" * 100_000, "some.yaml:1: nested deeper than 32 levels"),
        ("- " * 40 + "x", "nested deeper"),
        (CHAIN, "some.yaml:32: nested deeper"),
        ("a: &a [*a]", "some.yaml:1: "),
        ("a: &a {b: [*a]}", "some.yaml:1: "),
        ("a: [", "some.yaml:1: not valid YAML"),
        ("a: *b", "some.yaml:1: not valid YAML: found undefined alias"),
        ("a: !!int ''", "not valid YAML: "),
        ("a: !!bool perhaps", "not valid YAML: "),
        ("a: !!timestamp soon", "not valid YAML: "),
        ("a: 2026-13-45", "not valid YAML: "),
        ("a: " + "9" * 5_000, "not valid YAML: "),
    ],
)  # fmt: skip
def test_what_does_harm_is_refused_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize("read", [read_settings_file, read_targets])
@pytest.mark.parametrize("text", [BOMB, "a: " + "[" * 100_000, CHAIN, "a: !!int ''"])
def test_every_reader_of_files_refuses_it(read: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(HarmonyError, match=r"hostile\.yaml") as refused:
        read(path)
    assert refused.value.exit_code == 2


def test_as_many_levels_as_are_allowed_are_read() -> None:
    allowed = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert load_yaml(allowed, FILE)[1] == yaml.safe_load(allowed)
    assert "deeper" in refusal("[" + allowed + "]")


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 5), max_size=4)), min_size=1, max_size=6), st.data())
def test_aliases_count_as_all_that_they_stand_for(lists: list[tuple[bool, list[int]]], data: st.DataObject) -> None:
    """A document is read if and only if its copy without aliases has no more values than are allowed."""
    lines, sizes = [], []
    for n, (_, wanted) in enumerate(lists):
        used = [k for k in wanted if k < n]
        lines.append(f"- &a{n} [{', '.join(['x', *(f'*a{k}' for k in used)])}]")
        sizes.append(2 + sum(sizes[k] for k in used))
    total, text = 1 + sum(sizes), "\n".join(lines)
    most = data.draw(st.integers(max(1, total - 3), total + 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_text, "MAX_NODES", most)
        if total > most:
            assert "values" in refusal(text)
        else:
            assert load_yaml(text, FILE)[1] == yaml.safe_load(text)
