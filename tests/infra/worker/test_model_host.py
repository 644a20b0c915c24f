"""The forecaster that a worker hosts: whose it is as shipped, and for how many workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from infra.console.errors import HarmonyError
from infra.settings.load import Settings
from infra.worker.forecast_role import host_model, network_device
from model.contract import COARSE_ROWS
from streams.catalogue import DEFAULT_CATALOGUE
from streams.meter import NullMeter
from tests.model.batches import context_batch


@pytest.mark.parametrize(
    ("model", "step_s", "most"), [({}, 5, 83), ({}, 60, 1_000), ({"max_network_workloads": 0}, 5, 0)]
)
def test_a_partition_has_as_many_network_workloads_as_its_step_allows(
    model: dict[str, object], step_s: int, most: int
) -> None:
    settings = Settings.model_validate({"step_s": step_s, "advanced": {"model": model}})
    inference, engine = host_model(settings, DEFAULT_CATALOGUE, NullMeter())
    try:
        assert engine._crowd is not None
        assert engine._crowd[0] == most
    finally:
        inference.close()


def test_as_shipped_the_network_forecasts_from_the_first_steps_up_to_four_minutes() -> None:
    inference, engine = host_model(Settings(), DEFAULT_CATALOGUE, NullMeter())
    values = torch.rand(3, 128, 1, generator=torch.Generator().manual_seed(1)) + 5
    batch = context_batch(values)
    seen = torch.zeros(3, COARSE_ROWS, 1, dtype=torch.bool)
    seen[1, -35:] = True
    seen[2, -36:] = True
    batch = replace(batch, coarse=torch.full((3, COARSE_ROWS, 1), 5.0), coarse_observed=seen)
    try:
        assert engine._forecaster.forecast(batch, 16, 8).sources == ("combined",) * 3
        assert engine._forecaster.forecast(batch, 17, 8).sources == ("pool", "pool", "pool")
    finally:
        inference.close()


def test_a_gpu_that_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert network_device("auto") is None
    assert network_device("cpu") is None
    with pytest.raises(HarmonyError, match="torch finds no GPU here") as refused:
        network_device("cuda")
    assert refused.value.exit_code == 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (network_device("auto"), network_device("cpu")) == (torch.device("cuda"), None)
