"""Made-up series on which forecasters fail: the figures of a forecaster that is known, and what is refused."""

from __future__ import annotations

import pytest

from infra.console.errors import HarmonyError
from infra.lab.evaluate import facts
from infra.lab.evaluate.facts import FACTS, measured
from infra.lab.evaluate.models import checkpoint_forecaster


def test_the_seasonal_naive_repeats_a_nightly_job_and_knows_its_spread() -> None:
    values = {fact.fact: fact.value for fact in measured(["served_naive"])}
    assert set(values) == set(FACTS)
    assert values["nightly job at 10 min"] < 1.2
    assert 0.03 < values["flat, width of the 90 % band"] < 0.06
    assert 0.8 < values["128 rows, in the 90 % band"] < 0.97


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(HarmonyError, match="'oracle' is none of network"):
        measured(["oracle"])


@pytest.mark.parametrize("minutes", [1, 10])
def test_the_network_repeats_a_nightly_job(minutes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_DRAWS", 6)
    error = facts.nightly_job(checkpoint_forecaster("network"), minutes)
    assert error < 1.1, "error of the median by that of yesterday's value"
