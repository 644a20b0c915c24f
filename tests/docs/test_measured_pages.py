"""The figures of README, performance and replay are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench.measured_pages import PAGES, ROOT, written
from tests.bench.performance_goals import goals
from tests.bench.performance_plot import draw
from tests.bench.stored import results


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_tables_are_those_of_the_results(path: Path) -> None:
    assert written(path.read_text()) == path.read_text(), "run `python -m tests.bench.measured_pages`"


@pytest.mark.parametrize(("path", "count"), list(zip(PAGES, (1, 8, 5), strict=True)), ids=[p.stem for p in PAGES])
def test_a_figure_changed_by_hand_is_seen(path: Path, count: int) -> None:
    page = path.read_text()
    tables = re.findall(r"^<!-- \w+ -->\n(.*?)^<!-- end -->$", page, re.DOTALL | re.MULTILINE)
    assert len(tables) == count
    for one in tables:
        number = re.search(r"\d+", one)
        assert number is not None
        forged = page.replace(one, one.replace(number[0], "999999", 1))
        assert written(forged) == page


def test_figures_in_prose_are_those_of_the_results() -> None:
    cells = results("replay_cells")["results"]

    taken = {row["windows"]: row["us_per_window"] / 1000 for row in results("inference")["results"]
             if row["subject"] == "combined" and row["device"] == "cpu"}
    for name, said in (
        ("docs/comparison.md", f"the table of {len(cells)} cells"),
        ("docs/lab/network.md", f"{taken[64]:.1f} ms of one core per workload in batches, {taken[1]:.0f} ms for one"),
    ):
        assert said in " ".join((ROOT / name).read_text().split()), (name, said)


def test_a_goal_is_kept_or_missed_by_what_was_measured() -> None:
    found = {goal.what: goal for goal in goals(results)}
    assert len(found) == 12
    rate = results("ingest")["results"]["single"]["subjects"]["harmony"]["samples_per_s"]["median"]
    assert found["one JSON record per sample"].kept == (rate >= 200_000)

    def slower(name: str) -> dict[str, object]:
        document = dict(results(name))
        if name == "recovery-10000":
            document["results"] = [r | {"last_s": 1e3} for r in document["results"]]
        return document

    back = next(g for g in goals(slower) if g.what.startswith("kill -9"))
    assert (back.measured, back.kept) == ("1000.0 s", False)


def test_the_picture_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw(tmp_path / "performance.png", results).stat().st_size > 20_000
