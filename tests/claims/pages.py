"""Writes the measured parts of all pages and the picture: `python -m tests.claims.pages`.

On a line of its own, `<!-- measured: ID -->` opens a block with a table, and a line `<!-- end -->` ends it. Within a
line, `<!-- measured: ID -->` and `<!-- end -->` enclose the figure of a claim. Both are made from the records in
tests/bench/results, and a test holds the pages to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench import performance_tables, replay_tables
from tests.bench.performance_plot import draw
from tests.bench.stored import results
from tests.claims import tables
from tests.claims.registry import claims, recorded

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/performance.png"
BLOCKS: Mapping[str, Callable[[], str]] = performance_tables.BLOCKS | replay_tables.BLOCKS | tables.BLOCKS
BLOCK = re.compile(r"^(<!-- measured: ([a-z0-9_-]+) -->\n)(.*?)(?=^<!-- end -->$)", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(<!-- measured: ([a-z0-9_-]+) -->)([^\n]*?)(?=<!-- end -->)")


def pages() -> list[Path]:
    """README and every page of the documentation that has a measured part."""
    known = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in known if (text := path.read_text()) and (BLOCK.search(text) or INLINE.search(text))]


def written(page: str) -> str:
    """The page with its measured parts as the records say.

    Raises:
        KeyError: a page names a block or a claim that does not exist.
    """
    page = BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n", page)
    figures = {claim.id: claim for claim in claims()}
    return INLINE.sub(lambda found: f"{found[1]}{recorded(figures[found[2]]).shown}", page)


if __name__ == "__main__":
    for path in pages():
        path.write_text(written(path.read_text()))
    draw(PICTURE, results)
