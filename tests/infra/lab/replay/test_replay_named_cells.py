"""The named cells: what a name stands for, what is stored of a cell, and when a stored result applies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.lab.replay import cells, simulation
from infra.lab.replay.cells import (
    DEVELOPMENT,
    LOADS,
    SHOWN,
    CellTask,
    PolicyFigures,
    cell_of,
    code_digest,
    known_hours,
    named_loads,
    run_task,
    setting_digest,
    stored,
    summary_rows,
)


def _figures(policy: str, attainment: float, hours: float, oracle_hours: float | None = 2.0) -> PolicyFigures:
    return PolicyFigures("ramp", 100.0, policy, attainment, attainment, hours, oracle_hours, 1.0, "x=1", 0.0)


def test_a_group_holds_its_loads_and_no_load_is_in_two() -> None:
    assert named_loads("ramp,conversation,ramp") == ["ramp", "conversation"]
    assert not set(named_loads(DEVELOPMENT)) & set(named_loads(SHOWN))
    assert set(named_loads("all")) == set(LOADS)
    with pytest.raises(HarmonyError, match="'nothing' is no load: choose from development, shown"):
        named_loads("nothing")


def test_the_options_of_a_load_leave_defaults_out() -> None:
    assert LOADS["ramp"].arguments("DATA") == (
        "--rate", "ramp", "--profile", "llmd-guide", "--slo-ttft", "3", "--slo-tpot", "0.1", "--seeds", "5",
        "--min-replicas", "3", "--max-replicas", "8",
    )  # fmt: skip
    assert "DATA/worldcup98/invocation_count.csv.gz" in LOADS["worldcup-50"].arguments("DATA")


def test_a_stored_value_is_not_computed_again(tmp_path: Path) -> None:
    calls: list[int] = []

    def compute() -> list[int]:
        calls.append(1)
        return [len(calls)]

    assert [stored(tmp_path, ("a", 1), compute) for _ in range(2)] == [[1], [1]]
    assert stored(tmp_path, ("a", 2), compute) == [2]


def test_what_a_cell_depends_on_is_in_its_digest() -> None:
    cell = cell_of(LOADS["ramp"], 100.0, Path())
    one, other = cell.scored(0), cell.scored(1)
    digests = {
        setting_digest(its)
        for its in (one, other, replace(one, lead_s=30.0), replace(one, share=0.9), replace(one, max_replicas=7))
    }
    assert len(digests) == 5
    assert setting_digest(cell_of(LOADS["ramp"], 100.0, Path()).scored(0)) == setting_digest(one)


def test_comments_and_docstrings_do_not_change_the_digest_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(
        ['def f():\n    """One."""\n    return 1\n', "def f():\n    # two\n    return 1\n", "def f():\n    return 2\n"]
    )
    monkeypatch.setattr("inspect.getsource", lambda _: next(texts))
    first, same, changed = (code_digest([simulation]) for _ in range(3))
    assert first == same != changed


def test_a_cell_runs_once_and_its_rivals_and_its_oracle_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CellTask("ramp", 100.0, ("static-peak",), Path(), tmp_path, seeds=1, budget=5)
    first = run_task(task)
    monkeypatch.setattr(cells, "run_policy", None)
    monkeypatch.setattr(cells, "oracle_bounds", None)
    again = run_task(task)
    assert [replace(its, wall_s=0.0) for its in again] == [replace(its, wall_s=0.0) for its in first]
    assert first[0].ratio is not None
    assert first[0].ratio > 1.0


def test_the_summary_counts_cells_that_keep_the_objective() -> None:
    figures = [_figures("a", 0.995, 3.0), _figures("a", 0.98, 2.0), _figures("b", 1.0, 4.0, None)]
    assert summary_rows(figures) == [
        ("a", "1 of 2", "1.25", "1.50", "98.00%"),
        ("b", "1 of 1", "", "", "100.00%"),
    ]


def test_a_record_lends_its_oracle_hours_to_the_same_draws(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"results": {"ramp, 100 s": {"hpa": {"gpu_hours": 6.0, "ratio": 1.5}}}}))
    assert known_hours(record, "ramp", 100.0, None) == 4.0
    assert known_hours(record, "ramp", 100.0, 2) is None
    assert known_hours(record, "ramp", 30.0, None) is None
    assert known_hours(None, "ramp", 100.0, None) is None
