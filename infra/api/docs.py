"""Writes docs/python-reference.md from the docstrings of `import harmony`: `python -m infra.api.docs`."""

from __future__ import annotations

import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

from infra import api

PAGE: Final = Path(__file__).parents[2] / "docs/python-reference.md"
_INTRODUCTION: Final = """# Python: reference

Every public name of `import harmony`, from its docstrings. [Python](python.md) has an example of each. The fields of
`Decision`, `Command` and `ForecastRecord` are those of the [formats](formats/README.md#decisions).

<!-- table: python -->
"""
_RECORDS: Final = ("Command", "Decision", "ForecastRecord")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)
_ITEM = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def page() -> str:
    """The whole page."""
    names = sorted({*api.__all__} - {*_RECORDS}, key=lambda name: (inspect.isclass(getattr(api, name)), name))
    return _INTRODUCTION + "\n".join(_entry(name, getattr(api, name)) for name in names) + "<!-- end -->\n"


def _entry(name: str, thing: Any, level: int = 2) -> str:
    """Heading, signature, docstring and tables of a function or class; of a class also its public methods."""
    text = inspect.getdoc(thing) or ""
    is_error = inspect.isclass(thing) and issubclass(thing, Exception)
    parts = _SECTION.split(text)
    lines = [f"{'#' * level} `{name}`", "", " ".join(parts[0].split()), ""]
    if not (is_dataclass(thing) or is_error):
        lines += ["```python", _signature(name, thing), "```", ""]
    for section, body in zip(parts[1::2], parts[2::2], strict=True):
        rows = _ITEM.findall(body)
        if rows and section != "Returns":
            lines += [f"| {_HEADS[section]} | meaning |", "|---|---|"]
            lines += [f"| `{key}` | {_cell(meaning)} |" for key, meaning in rows] + [""]
        else:
            lines += [f"{section}: {' '.join(body.split())}", ""]
    if inspect.isclass(thing) and not is_error:
        for key, method in vars(thing).items():
            if inspect.isfunction(method) and not key.startswith("_"):
                lines.append(_entry(f"{name}.{key}", method, level + 1))
    return "\n".join(lines)


_MAX_SIGNATURE: Final = 100
_HEADS: Final = {"Args": "argument", "Attributes": "attribute", "Raises": "error", "Yields": "item"}


def _signature(name: str, thing: Any) -> str:
    """One line, or a line per parameter where that is too long."""
    signature = inspect.signature(thing)
    parameters = [
        p.replace(default=...) if inspect.isfunction(p.default) else p  # its name has an address, which differs
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    texts = [str(p).replace(repr(p.annotation), str(p.annotation), 1).replace("Ellipsis", "...") for p in parameters]
    by_keyword = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters]
    if any(by_keyword):
        texts.insert(by_keyword.index(True), "*")
    answer = "" if inspect.isclass(thing) else f" -> {signature.return_annotation}"
    line = f"{name.rpartition('.')[2]}({', '.join(texts)}){answer}"
    if len(line) <= _MAX_SIGNATURE:
        return line
    return f"{name.rpartition('.')[2]}(\n" + "".join(f"    {text},\n" for text in texts) + f"){answer}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
