"""The figures of all pages are those of the committed records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench.performance_plot import draw
from tests.bench.stored import results
from tests.claims.pages import BLOCK, INLINE, ROOT, pages, written

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_measured_parts_are_those_of_the_records(path: Path) -> None:
    assert written(path.read_text()) == path.read_text(), "run `python -m tests.claims.pages`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_figure_changed_by_hand_is_seen(path: Path) -> None:
    page = path.read_text()
    for found in (*BLOCK.finditer(page), *INLINE.finditer(page)):
        at = found.start(3) + re.search(r"\d", found[3]).start()  # type: ignore[union-attr]
        assert written(f"{page[:at]}9999{page[at:]}") == page


def test_readme_and_the_page_of_claims_are_measured() -> None:
    assert {ROOT / "README.md", ROOT / "docs/measured.md"} <= set(PAGES)


def test_a_page_that_names_no_block_or_claim_is_refused() -> None:
    with pytest.raises(KeyError, match="nothing"):
        written("<!-- measured: nothing -->\n<!-- end -->\n")
    with pytest.raises(KeyError, match="nothing"):
        written("It takes <!-- measured: nothing -->3 s<!-- end -->.\n")


def test_a_figure_within_a_line_is_written() -> None:
    page = "It takes <!-- measured: plan-time -->9 s<!-- end --> or more.\n"
    taken_s = next(
        fleet["wall_s"]["median"]
        for fleet in results("plan")["results"]["fleets"]
        if (fleet["workloads"], fleet["threads"]) == (10_000, 2)
    )
    assert written(page) == page.replace("9 s", f"{taken_s:.2f} s")


def test_figures_in_prose_are_those_of_the_results() -> None:
    cells = results("replay_cells")["results"]
    taken = {
        row["windows"]: row["us_per_window"] / 1000
        for row in results("inference")["results"]
        if row["subject"] == "combined" and row["device"] == "cpu"
    }
    for name, said in (
        ("docs/comparison.md", f"the table of {len(cells)} cells"),
        ("docs/lab/network.md", f"{taken[64]:.1f} ms of one core per workload in batches, {taken[1]:.0f} ms for one"),
    ):
        assert said in " ".join((ROOT / name).read_text().split()), (name, said)


def test_the_picture_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(tmp_path / "performance.png", results).stat().st_size > 20_000
