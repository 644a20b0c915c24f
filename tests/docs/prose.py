"""A linter for the documentation's English: `python -m tests.docs.prose [PAGE ...]`.

It checks three rules on the text outside code: a sentence has at most `MAX_SENTENCE_WORDS` words, words of `DIALECT` do
not occur, and no statement starts with a pronoun that stands for its own subject ("What arrives is ...").
Sentence length is not checked in tables and headings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MAX_SENTENCE_WORDS = 22
# Words that make a person of a program, or that hide the subject of a sentence.
DIALECT = re.compile(
    r"(?<!-)\b(tells?|told|telling|heard|hears?|lives|lived|whoever|whatever|somebody|nobody|anybody|everybody|mine|ours"
    r"|believes?|believed|forgets?|forgot|forgotten|speaks?|spoke|spoken|knows|knew|says|said|thinks|wants|luck|dared"
    r"|pretends?|pretended|foretells?|in doubt|go(?:es|ing)? on|went on|g[ia]ves? up|given up|for ever|anew|of old"
    r"|its word|last word|operator's word|nevertheless|hindsight)\b",
    re.IGNORECASE,
)
_PRONOUN_SUBJECT = re.compile(r"(What|Who|Whose|Which|Nor|Neither)\b")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_MEASURED = re.compile(r"^<!-- (?:(?:measured|table): \S+|(?!end )\w+) -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
# The title of a dashboard's panel.
_PANEL = re.compile(r"([Pp]anels? )\*[^*]+\*")
# A list of names counts as one word.
_CODE_LIST = re.compile(r"\bcode(?:,? (?:and )?code)+\b")
# A figure with its unit, and a range of figures, count as one word.
_UNIT = r"(?: ?(?:%|s|ms|µs|ns|h|W|KB|MB|GB|KiB|MiB|GiB|requests/s|tokens/s|GPU-hours)(?![\w/]))?"
_FIGURE = re.compile(rf"(?<![\w.])[<≤≥×≈]?[\d.,/:+−-]*\d{_UNIT}(?:(?: to | → |–| / )[\d.,]*\d{_UNIT})*")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM = re.compile(r"^ *(?:[*+-]|\d+\.) +")
# A full stop that ends no sentence.
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|et al|No)\.", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+")
_WORD = re.compile(r"[^\W_]")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yields kind ("text", "table", "heading") and content of each paragraph, list item, table row and heading."""
    # A walk is shown as commands between markers, and is text like any other.
    page = _MEASURED.sub(lambda found: found[0] if "<!-- walk -->" in found[0] else "", page)
    page = _COMMENT.sub("", _FENCE.sub("\n", page))
    page = _CODE.sub("code", page)
    page = _PANEL.sub(r"\1", _LINK.sub(r"\1", page))
    paragraph: list[str] = []
    for line in [*page.splitlines(), ""]:
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "|", ">")) and not _ITEM.match(line):
            paragraph.append(stripped)
            continue
        if paragraph:
            yield "text", " ".join(paragraph)
            paragraph = []
        if stripped.startswith("#"):
            yield "heading", stripped.lstrip("# ")
        elif stripped.startswith("|"):
            yield "table", stripped
        elif stripped:
            paragraph = [_ITEM.sub("", stripped.lstrip("> "))]


def words_of(sentence: str) -> list[str]:
    """Returns the words of a sentence.

    >>> words_of("It keeps 99.1 to 99.7 % with 30 s, code and code.")
    ['It', 'keeps', '0', 'with', '0,', 'code.']
    """
    return _CODE_LIST.sub("code", _FIGURE.sub("0", sentence)).split()


def problems(page: str) -> list[str]:
    """Returns one sentence for each place that breaks a rule.

    >>> problems("The log tells a worker.")
    ['dialect "tells": The log tells a worker.']
    >>> problems("A worker reads `a.b. C d.` from the log. It then exits.")
    []
    """
    found = []
    for kind, text in blocks(page):
        found += [f'dialect "{word[0]}": {text[:160]}' for word in DIALECT.finditer(text)]
        if kind != "text":
            continue
        for sentence in _SENTENCE_END.split(_ABBREVIATION.sub(r"\1", text)):
            count = sum(1 for word in words_of(sentence) if _WORD.search(word))
            if count > MAX_SENTENCE_WORDS:
                found.append(f"{count} words: {sentence}")
            if _PRONOUN_SUBJECT.match(sentence.lstrip("*_(")) and "?" not in sentence and not sentence.endswith(":"):
                found.append(f"starts with a pronoun: {sentence}")
    return found


def pages() -> list[Path]:
    """Returns the pages that the rules hold for: README, CHANGELOG and docs without lab notes."""
    docs = [path for path in sorted(DOCS.rglob("*.md")) if (DOCS / "lab") not in path.parents]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *docs]


if __name__ == "__main__":
    failed = False
    for page_path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        for problem in problems(page_path.read_text(encoding="utf-8")):
            print(f"{page_path.relative_to(ROOT)}: {problem}")
            failed = True
    sys.exit(failed)
