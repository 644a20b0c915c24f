"""Tutorials that need no cluster run as they are shown, and notebooks are their pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.docs.notebooks import PAGES, TUTORIALS, cells, notebook, run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_cell_runs_and_gives_the_output_that_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed (extra `pandas`)")
    monkeypatch.setattr(sys, "path", [*sys.path])
    # A tutorial writes modules into its folder and imports them.
    monkeypatch.chdir(tmp_path)
    compared = 0
    for cell, output in run(page, tmp_path):
        if cell.output is not None:
            assert output == cell.output, cell.source
            compared += 1
    assert compared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_is_its_page(page: Path) -> None:
    written = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert written == notebook(page.read_text(encoding="utf-8")), "run `python -m tests.docs.notebooks`"
    assert f"({page.stem}.ipynb)" in page.read_text(encoding="utf-8"), "the page links its notebook"


def test_blocks_become_cells_with_their_outputs() -> None:
    page = "# A\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n```sh\nls\n```\n\n```python\n>>> a = 1\n>>> a + 1\n2\n\n```\nend\n"
    kinds = [(cell.kind, cell.output) for cell in cells(page)]
    assert kinds == [("markdown", None), ("python", "1\n"), ("sh", None), ("python", "2\n"), ("markdown", None)]
    made = json.loads(notebook(page))["cells"]
    assert made[2]["source"] == ["%%sh\n", "ls"]
    assert made[3]["source"] == ["a = 1\n", "a + 1"]
