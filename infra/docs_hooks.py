"""What the site's build changes in the pages: links to files of the repository become names, for it has none of them.

mkdocs calls these functions (`hooks` in mkdocs.yml). A link that leads nowhere at all is left as it is, for mkdocs to
warn of; the build is strict.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Folders of docs/ that are no pages (`exclude_docs`).
_FILES = ("examples", "snippets")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links out of docs/ replaced by what they name."""
    return rewritten(markdown, DOCS / page.file.src_uri)


def rewritten(markdown: str, file: Path) -> str:
    """The text of a page at `file`."""

    def replace(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if "://" in target:
            return link[0]
        leads_to = (file.parent / target).resolve()
        if not leads_to.exists() or not leads_to.is_relative_to(ROOT):
            return link[0]
        if leads_to.is_relative_to(DOCS) and leads_to.relative_to(DOCS).parts[:1] not in {(f,) for f in _FILES}:
            # A folder stands for its first page.
            return f"[{text}]({target.rstrip('/')}/README.md{link[3] or ''})" if leads_to.is_dir() else link[0]
        name = f"`{leads_to.relative_to(ROOT).as_posix()}`"
        return name if text.strip("`") in name or text == "ADR" else f"{text} ({name})"

    return _LINK.sub(replace, markdown)
