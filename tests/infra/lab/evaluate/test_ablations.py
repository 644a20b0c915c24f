"""Variants learn from the same batches, are trained once, and are compared seed by seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infra.console.errors import HarmonyError
from infra.lab.evaluate import ablations
from infra.lab.evaluate.ablations import ablate, summarize, train_arms
from model.network.checkpoint import load

SMALL = {"width": 16, "hidden": 16, "num_blocks": 1, "num_heads": 2, "latents": 2, "head_hidden": 8}


def test_variants_are_trained_once_and_equal_ones_come_out_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablations, "ARMS", {"full": SMALL, "again": SMALL, "single": {**SMALL, "seasons": False}})
    train_arms(tmp_path, steps=1, seed=1, workers=0)
    made = {arm: load(tmp_path / f"{arm}-1").network for arm in ("full", "again", "single")}
    full, again = made["full"].state_dict(), made["again"].state_dict()
    assert all(torch.equal(full[name], again[name]) for name in full)
    assert not made["single"].spec.seasons
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    train_arms(tmp_path, steps=1, seed=1, workers=0)
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


def test_ratios_are_taken_within_a_seed() -> None:
    runs = [
        {"arm": arm, "seed": seed, "wql": base * worth}
        for seed, base in ((1, 0.5), (2, 0.8), (3, 0.6))
        for arm, worth in (("full", 1.0), ("flat", 1.1))
    ]
    full, flat = summarize(runs)
    assert full["wql"]["over_full"] == 1.0
    assert flat["wql"]["over_full_low"] == pytest.approx(1.1)
    assert flat["wql"]["over_full_high"] == pytest.approx(1.1)
    assert (flat["wql"]["low"], flat["wql"]["high"]) == (pytest.approx(0.55), pytest.approx(0.88))


def test_telemetry_that_is_not_there_is_missed_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablations, "train_arms", lambda *_: pytest.fail("trained"))
    monkeypatch.setenv("HARMONY_DATA_DIR", str(tmp_path))
    with pytest.raises(HarmonyError, match=r"there is no directory .*forecast-tasks"):
        ablate(tmp_path / "out")
    with pytest.raises(HarmonyError, match="--part: 'x' is neither test nor validation"):
        ablate(tmp_path / "out", part="x")
