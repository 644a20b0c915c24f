"""A commit record holds every learned number: no field of the state can be left out of it."""

from __future__ import annotations

from dataclasses import fields

from agents.forecast.commit import StateSnapshot
from agents.workload.state import LearnedState
from model.calibration.trust import ForecasterRecord, ForecastTrust, PendingForecast

# The declaration comes from the policy of the present.
_DECLARED = {"spec", "declared"}


def test_every_field_of_the_state_is_in_the_record() -> None:
    names = {field.name for field in fields(LearnedState)} - _DECLARED
    assert names == set(StateSnapshot.__struct_fields__)


def test_every_number_of_a_forecaster_is_in_the_record() -> None:
    record = ForecasterRecord("ridge", trusted=False, widening=0.1, count=2.0, misses=3.0)
    pending = PendingForecast(8, 1.0, 2.0, 3.0, 4.0, "ridge")
    trust = ForecastTrust((record,))
    trust.expect(pending)
    stored = trust.snapshot()
    assert set(stored["standings"]["ridge"]) == {field.name for field in fields(ForecasterRecord)} - {"source"}
    restored = ForecastTrust.restore(stored)
    assert (restored.standings, restored.waiting) == ((record,), [pending])
