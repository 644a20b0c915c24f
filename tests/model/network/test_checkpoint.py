"""Checkpoints: what was saved comes back, and everything else is refused in words."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save as to_bytes

from model.network.checkpoint import SPEC, WEIGHTS, CheckpointError, load, save
from model.network.forecaster import serving_forecaster, worker_forecaster
from tests.model.batches import random_batch
from tests.model.network.untrained import small_network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(small_network(), tmp_path / "model", {"steps": 3})
    return tmp_path / "model"


def _change_spec(folder: Path, **changes: object) -> None:
    body = json.loads((folder / SPEC).read_text())
    body["spec"] |= changes
    (folder / SPEC).write_text(json.dumps(body))


def _change_weights(folder: Path, data: bytes) -> None:
    (folder / WEIGHTS).write_bytes(data)
    body = json.loads((folder / SPEC).read_text())
    (folder / SPEC).write_text(json.dumps(body | {"sha256": hashlib.sha256(data).hexdigest()}))


def test_comes_back_as_it_was(folder: Path) -> None:
    checkpoint, network = load(folder), small_network()
    assert checkpoint.about == {"steps": 3}
    assert checkpoint.digest == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    for name, value in network.state_dict().items():
        assert torch.equal(checkpoint.network.state_dict()[name], value), name


def test_damaged_weights_are_refused(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"digest of the weights is .* the file is damaged"):
        load(folder)


def test_a_file_larger_than_any_network_is_not_read(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(200 * 1024**2 + 1)  # it has holes, and takes no room
    with pytest.raises(CheckpointError, match="larger than 200 MiB, which is no network of ours"):
        load(folder)
    reasons: list[str] = []
    worker_forecaster(str(folder), reasons.append)
    assert "larger than 200 MiB" in reasons[0]


def test_another_version_is_refused(folder: Path) -> None:
    _change_spec(folder, version=99)
    with pytest.raises(CheckpointError, match=r"spec of version 99, this program reads version 3: .*harmony train"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 3}, "unknown setting 'depth'"),
        ({"width": 7}, "width 7 is not a multiple"),
        ({"attention": "all"}, "attention 'all' is not one of"),
        ({"width": 64}, "has shape"),
        ({"num_blocks": 2}, "tensors do not match the spec"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(folder: Path, changes: dict[str, object], words: str) -> None:
    _change_spec(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        load(folder)


def test_weights_that_are_not_finite_are_neither_read_nor_written(folder: Path) -> None:
    network = small_network()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    weights["enter.bias"][2] = torch.inf
    _change_weights(folder, to_bytes(weights))
    with pytest.raises(CheckpointError, match=r"enter\.bias holds numbers that are not finite"):
        load(folder)
    network.load_state_dict(weights)
    with pytest.raises(CheckpointError, match="not finite"):
        save(network, folder, {})


def test_rubbish_is_refused_and_never_unpickled(folder: Path) -> None:
    _change_weights(folder, b"\x80\x04cposix\nsystem\n.")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(folder)
    (folder / SPEC).write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load(folder)
    (folder / SPEC).write_text("[]")
    with pytest.raises(CheckpointError, match="wanted an object"):
        load(folder)
    with pytest.raises(CheckpointError, match="No such file"):
        load(folder / "nowhere")


def test_a_worker_serves_whatever_became_of_the_weights(folder: Path) -> None:
    batch, said = random_batch(2, seed=1), []
    assert serving_forecaster(str(folder), said.append).forecast(batch, 5, 20).sources == ("combined", "combined")
    assert serving_forecaster("none", said.append).forecast(batch, 5, 20).sources != ("harmony", "harmony")
    assert said == []
    (folder / WEIGHTS).write_bytes(b"")
    assert serving_forecaster(str(folder), said.append).forecast(batch, 5, 20).sources != ("harmony", "harmony")
    assert "digest" in said[0]
    assert "the baselines forecast in its place" in said[0]


def test_a_worker_asks_the_shipped_network_from_the_first_steps_and_for_four_minutes(folder: Path) -> None:
    batch, said = random_batch(2, seed=1), []
    batch.coarse_observed[:] = False
    batch.coarse_observed[1, -36:] = True
    forecaster = worker_forecaster(on_refusal=said.append)
    assert forecaster.forecast(batch, 16, 20).sources == ("combined", "combined")
    assert forecaster.forecast(batch, 17, 20).sources == ("pool", "pool")
    assert forecaster.forecast(replace(batch, step_ms=5_000), 48, 20).sources == ("combined", "combined")
    for everywhere in (serving_forecaster(), worker_forecaster(str(folder), said.append)):
        assert everywhere.forecast(batch, 17, 20).sources == ("combined", "combined")
    assert said == []
