"""What the measured pages are made of."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.stored import Document


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, a line per row."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (headings, *rows)]
    return lines[0] + "|" + "---|" * len(headings) + "\n" + "".join(lines[1:])


def conditions(found: Document) -> str:
    """When, where and under which load, in one line; old records hold no load."""
    machine, load = found["machine"], found.get("load_average")
    if load is None:
        return f"{found['date']}, {machine['cores']} cores.\n"
    cpu = "Intel Xeon" if machine["cpu"].startswith("Intel") else machine["cpu"]
    place = f"{machine['cores']} cores ({cpu}), {machine['memory_gib']:.0f} GiB, Python {machine['python']}"
    return f"{found['date']}, {place}, load average {load['least']:.1f} to {load['most']:.1f}.\n"
