"""Writes tables and pictures of the pages that show figures: `python -m tests.bench.measured_pages`.

Between `<!-- NAME -->` and `<!-- end -->` stands what is made of tests/bench/results; a test holds the pages to it.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench import performance_tables, replay_tables
from tests.bench.performance_plot import draw
from tests.bench.stored import results

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / name for name in ("README.md", "docs/lab/performance.md", "docs/lab/replay.md"))
PICTURE = ROOT / "docs/images/performance.png"
_BLOCK = re.compile(r"(?<=^<!-- )(?!end )(\w+)( -->\n).*?(?=^<!-- end -->$)", re.DOTALL | re.MULTILINE)
_BLOCKS = performance_tables.BLOCKS | replay_tables.BLOCKS


def written(page: str) -> str:
    """The page with its tables as the results say."""
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{_BLOCKS[found[1]]()}\n", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text()))
    draw(PICTURE, results)
