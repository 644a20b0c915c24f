"""README, CHANGELOG and docs keep the rules of `tests/docs/prose.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.prose import MAX_SENTENCE_WORDS, ROOT, pages, problems

MAX_README_WORDS = 900


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_the_rules(page: Path) -> None:
    assert problems(page.read_text(encoding="utf-8")) == []


def test_the_index_of_decision_records_has_each_with_its_title() -> None:
    folder = ROOT / "docs/adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for path in sorted(folder.glob("0*.md")):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(". ")
        assert path.name.startswith(f"{int(number):04d}-")
        assert f"| [{number}]({path.name}) | {title} |" in index


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MAX_README_WORDS


def test_a_long_sentence_is_found_in_a_list_but_not_in_a_table() -> None:
    long = " ".join(["word"] * (MAX_SENTENCE_WORDS + 1))
    assert [text.split(":")[0] for text in problems(f"* one.\n* {long}\n\n| {long} |\n")] == ["23 words"]
    assert problems("* " + " ".join(["word"] * MAX_SENTENCE_WORDS)) == []


def test_code_links_and_measured_blocks_are_no_prose() -> None:
    assert problems("`told` and [a page](told.md).\n\n```\nwho says so\n```\n") == []
    assert problems("<!-- measured: some-id -->\nas it is told\n<!-- end -->\n") == []


def test_a_statement_needs_a_subject_and_a_question_does_not() -> None:
    assert problems("What arrives is counted.") == ["starts with a pronoun: What arrives is counted."]
    assert problems("What arrives first?") == []


def test_words_are_found_in_tables_and_headings() -> None:
    assert len(problems("# The log tells\n\n| a worker knows |\n")) == 2


def test_no_page_holds_the_marks_of_a_merge() -> None:
    for page in pages():
        lines = page.read_text(encoding="utf-8").splitlines()
        assert not [n for n, line in enumerate(lines, 1) if line.startswith(("<<<<<<< ", ">>>>>>> "))], page
