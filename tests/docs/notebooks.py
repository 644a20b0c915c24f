"""Notebooks of tutorials: `python -m tests.docs.notebooks` writes each beside its page.

A page is the only source. Its ```python blocks become cells, and its ```sh blocks cells of the shell; a ```text block is
the output of the cell before. Of a block of doctests, each example with an output ends a cell.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.prose import DOCS, ROOT

TUTORIALS = (DOCS / "tutorials/first-backtest.md", DOCS / "tutorials/own-forecaster.md")
PAGES = (*TUTORIALS, DOCS / "python.md")
_BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


class Cell(NamedTuple):
    """A part of a page: `kind` is markdown, python, raises or sh; `output` is what the page shows of it, or None."""

    kind: str
    source: str
    output: str | None = None


def cells(page: str) -> list[Cell]:
    """Returns the cells of a page."""
    found: list[Cell] = []
    end = 0
    for block in _BLOCK.finditer(page):
        between = page[end : block.start()].strip()
        end = block.end()
        language, content = block.groups()
        if between:
            found.append(Cell("markdown", between))
        if language == "text":
            found[-1] = found[-1]._replace(output=content)
        elif ">>> " in content:
            found += _examples(content)
        else:
            found.append(Cell(language, content))
    rest = page[end:].strip()
    return [*found, Cell("markdown", rest)] if rest else found


def _examples(content: str) -> Iterator[Cell]:
    """Yields a cell for each example of a doctest that shows something, with the statements before it."""
    source = ""
    for example in doctest.DocTestParser().get_examples(content):
        source += example.source
        if example.want:
            yield Cell("raises" if example.exc_msg else "python", source, example.want)
            source = ""
    if source:
        yield Cell("python", source)


def notebook(page: str) -> str:
    """Returns the notebook of a page, as Jupyter writes files (format 4.5)."""
    written = [_written(cell, f"cell-{number}") for number, cell in enumerate(cells(page))]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    document = {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _written(cell: Cell, name: str) -> dict[str, Any]:
    source = f"%%sh\n{cell.source}" if cell.kind == "sh" else cell.source
    common = {"id": name, "metadata": {}, "source": source.rstrip("\n").splitlines(keepends=True)}
    if cell.kind == "markdown":
        return {"cell_type": "markdown", **common}
    if cell.kind == "raises":
        common["metadata"] = {"tags": ["raises-exception"]}
    lines = (cell.output or "").splitlines(keepends=True)
    shown = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    return {"cell_type": "code", "execution_count": None, **common, "outputs": shown}


def run(page: Path, folder: Path) -> Iterator[tuple[Cell, str]]:
    """Runs the cells of a page in a folder, as a kernel would; yields each with its output.

    Raises:
        Exception: of a cell; subprocess.CalledProcessError of a cell of the shell.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(page.read_text(encoding="utf-8")):
        if cell.kind == "sh":
            yield cell, _run_shell(cell.source, folder)
        elif cell.kind == "python":
            out = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(out):
                exec(compile(cell.source, str(page), "exec"), names)  # noqa: S102 - the page is a file of this repository
            yield cell, out.getvalue()


def _run_shell(script: str, folder: Path) -> str:
    """Runs commands with `harmony` of this checkout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    packages = os.pathsep.join((str(ROOT), str(ROOT / "infra/deploy/wheel/checkout")))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": packages}
    done = subprocess.run(
        ["sh", "-ec", script], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def main() -> None:
    for page in PAGES:
        page.with_suffix(".ipynb").write_text(notebook(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
