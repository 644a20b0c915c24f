"""Reports of the measuring commands (`replay`, `backtest`, `evaluate`, `bench`): JSON, tables and pages.

A JSON document of a bench carries the class of the machine, the date and the load, so that two runs can be compared.
Tables are plain text on stdout. A page is one summary, one table, one picture and notes, as Markdown and as HTML.
"""

from __future__ import annotations

import base64
import html
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from infra.console.errors import HarmonyError
from infra.console.text import columns_that_fit

STDOUT = Path("-")
"""The file name that stands for standard output."""


def plain(value: Any) -> Any:
    """Return the value as JSON can hold it: null for NaN and the infinities, lists for tuples.

    >>> plain({"mse": float("nan"), "pair": (1, 2.5)})
    {'mse': None, 'pair': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(where: Path | None, body: Any) -> None:
    """Write a JSON document to a file, or on one line of stdout for `-`; None writes nothing.

    Raises:
        HarmonyError: the file cannot be written (exit code 2).
    """
    if where is None:
        return
    if where == STDOUT:
        print(json.dumps(plain(body)), flush=True)
        return
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(plain(body), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise HarmonyError(f"--json: cannot write {where}: {error.strerror or error}.", 2) from None


# The conditions of a measurement.


def document(bench: str, job: Mapping[str, Any], results: Any, loads: Sequence[float]) -> dict[str, Any]:
    """Return the stored form of a measurement.

    Args:
        job: what was measured, by name.
        loads: load averages taken during the run.
    """
    return {
        "bench": bench,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "load_average": {"least": min(loads), "most": max(loads)},
        "job": dict(job),
        "results": results,
    }


def machine() -> dict[str, Any]:
    """Return the class of this machine; host name and addresses stay out."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in described if line.startswith("model name")), "")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model or platform.machine(),
        "memory_gib": round(memory_gib, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def load_average() -> float:
    """Return the mean number of processes that wanted a core during the last minute."""
    return round(os.getloadavg()[0], 2)


def process_memory_mib(field: str, pid: int | str = "self") -> float:
    """Return a memory figure of a process in MiB.

    Args:
        field: a name of /proc/PID/status, such as VmRSS (resident now) or VmHWM (resident at most).
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) / 1024


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'min': 1.0, 'max': 3.0}
    """
    return {"median": median(values), "min": min(values), "max": max(values)}


def percentile(values: Sequence[float], level: float) -> float:
    """Return the nearest-rank percentile.

    Args:
        level: between 0 and 1.

    >>> percentile([10.0, 20.0, 30.0, 40.0], 0.5)
    20.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(level * len(ordered) - 1e-9) - 1)]


# Tables and pages.


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "", *, title: str = "", left: Sequence[str] = ()
) -> None:
    """Print a plain table on stdout; columns are two spaces apart. A narrow terminal shows fewer of the last ones.

    Args:
        left: headings whose columns are aligned left beside the first one; numbers stand right.
    """
    widths = [max(len(row[k]) for row in (headings, *rows)) for k in range(len(headings))]
    if title:
        sys.stdout.write(title + "\n")
    shown = list(range(len(headings)))
    if sys.stdout.isatty():
        shown = columns_that_fit(widths, [max(0, k - 1) for k in shown], shutil.get_terminal_size().columns)
    for row in (headings, *rows):
        cells = [row[k].ljust(widths[k]) if k == 0 or headings[k] in left else row[k].rjust(widths[k]) for k in shown]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    if note:
        sys.stdout.write(note + "\n")
    sys.stdout.flush()


_STYLE = (
    ":root{color-scheme:light dark;--ink:#22303c;--line:#d5dbe1;--paper:#fff}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--line:#3a4550;--paper:#14191f}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}.scroll{overflow-x:auto}table{border-collapse:collapse}"
    "td,th{padding:.3rem .8rem;border-bottom:1px solid var(--line);text-align:right}"
    # The picture is drawn on white.
    "td:first-child,th:first-child{text-align:left}img{max-width:100%;border-radius:6px}tr:last-child{font-weight:600}"
    ".summary{font-size:1.15rem}"
)


@dataclass(frozen=True, slots=True)
class ReportPage:
    """A report that people read, in one file.

    Attributes:
        title: of the browser's window.
        picture: a PNG file that is embedded in the HTML; None = no picture.
        picture_text: what the picture shows, for readers who do not see it.
        terms: the conditions that hold for the whole table.
    """

    title: str
    heading: str
    summary: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    picture: Path | None
    picture_text: str
    terms: str
    notes_heading: str
    notes: Sequence[str]

    def to_markdown(self) -> str:
        """Return the page as Markdown; the picture is linked by its file name."""
        table = [self.headings, ("---", *["---:"] * (len(self.headings) - 1)), *self.rows]
        rows = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
        picture = f"![{self.picture_text}]({self.picture.name})\n\n" if self.picture else ""
        notes = "\n".join(f"* {note}" for note in self.notes)
        return (
            f"# {self.heading}\n\n{self.summary}\n\n{rows}\n\n{picture}{self.terms}\n\n"
            f"## {self.notes_heading}\n\n{notes}\n"
        )

    def to_html(self) -> str:
        """Return the page as one HTML file that needs no other file."""

        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        picture = ""
        if self.picture is not None:
            encoded = base64.b64encode(self.picture.read_bytes()).decode()
            picture = f'<p><img alt="{html.escape(self.picture_text)}" src="data:image/png;base64,{encoded}"></p>'
        body = "\n".join(row(cells, "td") for cells in self.rows)
        notes = "\n".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head><body><main>\n"
            f'<h1>{html.escape(self.heading)}</h1>\n<p class="summary">{html.escape(self.summary)}</p>\n'
            f"<div class=scroll tabindex=0><table>{row(self.headings, 'th')}\n{body}</table></div>\n{picture}\n"
            f"<p>{html.escape(self.terms)}</p>\n<h2>{html.escape(self.notes_heading)}</h2>\n<ul>{notes}</ul>\n"
            f"</main></body></html>\n"
        )

    def write(self, markdown: Path, page: Path) -> None:
        """Write both forms.

        Raises:
            HarmonyError: a file cannot be written.
        """
        try:
            markdown.write_text(self.to_markdown(), encoding="utf-8")
            page.write_text(self.to_html(), encoding="utf-8")
        except OSError as error:
            raise HarmonyError(f"--out: cannot write {error.filename} ({error.strerror}).") from None
