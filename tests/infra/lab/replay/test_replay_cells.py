"""The table over all cells of replays: means over seeds, the oracle's hours as the unit, cells kept first."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.bench.replay_cells import LOADS, scored, summary, with_harmony, with_others
from tests.bench.replay_draws import draws_of


def _row(policy: str, attainment: float, hours: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "attainment": attainment,
        "worst_window_attainment": attainment - 0.01,
        "gpu_hours": hours,
        "switches_per_hour": hours,
        "mean_replicas": hours,
        "params": "x=1",
    }


def _cell(*rows: dict[str, Any], oracle: tuple[float, ...]) -> dict[str, Any]:
    bounds = {str(seed): {"gpu_hours": hours} for seed, hours in enumerate(oracle)}
    told = {"harmony": {"stated": 0.01, "realized_and_interval": [0.02, 0.0, 0.05]}}
    return {"policies": list(rows), "oracle": {"lead_constrained": bounds}, "calibration": told}


def test_hours_are_told_in_those_of_the_oracle_and_seeds_are_averaged() -> None:
    cell = _cell(_row("hpa", 0.99, 3.0), _row("hpa", 0.97, 5.0), _row("harmony", 1.0, 6.0), oracle=(1.0, 3.0))
    found = scored(cell)
    assert (found["hpa"].attainment, found["hpa"].gpu_hours, found["hpa"].ratio) == (0.98, 4.0, 2.0)
    assert found["hpa"].worst_window == 0.96
    assert (found["harmony"].ratio, found["harmony"].attainment) == (3.0, 1.0)
    assert (found["hpa"].stated, found["harmony"].stated) == (None, 0.01)
    assert found["harmony"].realized == (0.02, 0.0, 0.05)


def test_who_keeps_more_cells_comes_first_then_who_costs_less() -> None:
    def cell(**policies: tuple[float, float]) -> dict[str, Any]:
        rows = [_row(name, attainment, hours) for name, (attainment, hours) in policies.items()]
        return scored(_cell(*rows, oracle=(1.0,)))

    one = cell(cheap=(0.98, 1.0), dear=(0.99, 2.0), fair=(0.995, 1.5))
    other = cell(cheap=(0.99, 1.2), dear=(1.0, 3.0), fair=(0.99, 1.7))
    assert summary({"one": one, "other": other}) == [
        ["fair", "2 of 2", "1.60", "1.70", "1.6"],
        ["dear", "2 of 2", "2.50", "3.00", "2.5"],
        ["cheap", "1 of 2", "1.10", "1.20", "1.1"],
    ]


def test_loads_that_are_run_again_leave_the_others_as_they_were() -> None:
    results: dict[str, Any] = {"ramp, 30 s": {"hpa": 1}, "worldcup-50, 30 s": {}}
    first = {"date": "2026-01-01", "job": {"leads_s": [30]}, "results": results}
    again: dict[str, Any] = {"date": "2026-01-02", "job": {}, "results": {"ramp, 30 s": {"hpa": 2}}}
    found = with_others(again, ["ramp"], first)
    assert found["results"] == {"ramp, 30 s": {"hpa": 2}, "worldcup-50, 30 s": {}}
    assert list(found["job"]["measured"]) == list(LOADS)
    assert found["job"]["measured"]["ramp"] == "2026-01-02"
    assert found["job"]["measured"]["worldcup-50"] == "2026-01-01"
    third: dict[str, Any] = {"date": "2026-01-03", "job": {}, "results": {"worldcup-50, 30 s": {"hpa": 3}}}
    assert with_others(third, ["worldcup-50"], found)["job"]["measured"]["ramp"] == "2026-01-02"
    assert with_others(again, ["ramp"], None)["job"]["measured"] == {"ramp": "2026-01-02"}


def test_harmony_run_alone_is_told_in_the_hours_of_the_oracle_that_the_others_were_told_in() -> None:
    first = scored(_cell(_row("harmony", 0.98, 8.0), _row("hpa", 0.99, 6.0), _row("kpa", 1.0, 7.0), oracle=(2.0,)))
    alone = _cell(_row("harmony", 1.0, 4.0), _row("hpa", 0.99, 5.0), oracle=())
    found = with_harmony({policy: asdict(its) for policy, its in first.items()}, alone)
    assert {policy: (its.attainment, its.ratio) for policy, its in found.items()} == {
        "harmony": (1.0, 2.0),
        "hpa": (0.99, 2.5),
        "kpa": (1.0, 3.5),
    }


def test_with_harmony_alone_the_day_of_the_others_stays() -> None:
    first: dict[str, Any] = {"date": "2026-01-01", "job": {}, "results": {"ramp, 30 s": {"hpa": 1}}}
    again: dict[str, Any] = {"date": "2026-01-02", "job": {}, "results": {"ramp, 30 s": {"hpa": 1, "harmony": 2}}}
    job = with_others(again, ["ramp"], first, alone=True)["job"]
    assert (job["measured"]["ramp"], job["harmony"]["ramp"], job["harmony"]["worldcup-50"]) == (
        "2026-01-01",
        "2026-01-02",
        "2026-01-01",
    )


def _windows(row: dict[str, Any], seed: int, good: list[int], gpu_s: float) -> dict[str, Any]:
    return row | {"seed": seed, "windows": [[100, its, gpu_s] for its in good]}


def test_harmony_is_held_against_the_windows_of_the_hpa_that_was_tuned() -> None:
    hpa = [_windows(_row("hpa", 0.99, 3.0), seed, [99, 98, 100, 99], 10.0) for seed in (0, 1)]
    worse = [_windows(_row("harmony", 0.9, 3.0), seed, [95, 90, 96, 97], 12.0) for seed in (0, 1)]
    cheaper = [_windows(_row("harmony", 0.9, 3.0), seed, [95, 90, 96, 97], 8.0) for seed in (0, 1)]
    found = scored(_cell(*hpa, *worse, oracle=(1.0,)))
    missed, least, dearer, most = found["harmony"].against_hpa or ()
    assert -0.08 <= missed < least < 0.0
    assert dearer == most
    assert abs(dearer - 0.2) < 1e-9
    assert found["harmony"].worse_than_hpa
    assert not scored(_cell(*hpa, *cheaper, oracle=(1.0,)))["harmony"].worse_than_hpa, "it costs less"
    assert found["hpa"].against_hpa is None
    before = scored(_cell(_row("hpa", 0.99, 3.0), _row("harmony", 1.0, 6.0), oracle=(1.0,)))["harmony"]
    assert before.against_hpa is None
    assert not before.worse_than_hpa


def test_draws_are_told_one_by_one_and_held_against_each_other() -> None:
    ours = [_windows(_row("harmony", kept, 4.0), seed, [99, 99, 98], 9.0) for seed, kept in enumerate((0.99, 0.98))]
    theirs = [_windows(_row("hpa", 0.97, 5.0), seed, [97, 98, 96], 10.0) for seed in (0, 1)]
    found = draws_of(_cell(*ours, *theirs, oracle=()))
    assert found["harmony"] == {"attainment": [0.99, 0.98], "gpu_hours": [4.0, 4.0]}
    assert found["hpa"] == {"attainment": [0.97, 0.97], "gpu_hours": [5.0, 5.0]}
    missed, kept, cheaper, dearer = found["against_hpa"]
    assert 0.0099 < missed <= kept < 0.0201
    assert cheaper == dearer
    assert abs(cheaper + 0.1) < 1e-9
