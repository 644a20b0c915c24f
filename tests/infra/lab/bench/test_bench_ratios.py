"""The committed figures of `harmony bench ingest` keep the ratios that are promised, and a fall would be noticed."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from infra.lab.bench.ingest import BASELINES, LIMITS, fallen

RESULTS = Path(__file__).parents[3] / "bench" / "results" / "ingest.json"


def committed() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return stored


def test_the_committed_ratios_are_no_lower_than_their_limits() -> None:
    assert committed().keys() == LIMITS.keys()
    assert fallen(committed()) == []


@pytest.mark.parametrize("form", LIMITS)
@pytest.mark.parametrize(("figure", "by"), [("samples_per_s", 0.05), ("cpu_us_per_sample", 20.0)])
def test_a_fall_is_noticed(form: str, figure: str, by: float) -> None:
    worse = deepcopy(committed())
    worse[form]["subjects"]["harmony"][figure]["median"] *= by
    (said,) = fallen(worse)
    assert said.startswith(f"{form}: ")
    assert LIMITS[form].rival in said


def test_a_machine_that_is_slower_for_all_changes_nothing() -> None:
    slower = deepcopy(committed())
    for result in slower.values():
        for subject in result["subjects"].values():
            subject["samples_per_s"]["median"] /= 7
            subject["cpu_us_per_sample"]["median"] *= 7
    assert fallen(slower) == []


def test_the_limits_name_the_rivals_that_figures_are_shown_beside() -> None:
    assert {form: limit.rival for form, limit in LIMITS.items()} == dict(BASELINES)


def test_results_without_rivals_promise_nothing() -> None:
    alone = deepcopy(committed())
    for result in alone.values():
        result["subjects"] = {"harmony": result["subjects"]["harmony"]}
    assert fallen(alone) == []
