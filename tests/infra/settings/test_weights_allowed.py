"""Weights that are not on the list are not loaded, and a pickle never is."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
import torch

from infra.settings.load import load_settings
from infra.settings.weights import allowed_weights
from model.network.checkpoint import CheckpointError, load
from model.network.spec import SHIPPED


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.witness,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.mkdir()
    for file in SHIPPED.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    return made


def test_a_listed_digest_is_loaded_another_is_not_and_the_shipped_ones_always_are(folder: Path) -> None:
    refused: list[str] = []
    digest = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    assert allowed_weights(str(folder), (digest,), refused.append) == str(folder)
    assert allowed_weights(str(folder), (), refused.append) == str(folder)
    assert allowed_weights("shipped", ("0" * 64,), refused.append) == "shipped"
    assert allowed_weights("none", ("0" * 64,), refused.append) == "none"
    assert not refused
    assert allowed_weights(str(folder), ("0" * 64,), refused.append) == "none"
    assert allowed_weights(str(folder / "absent"), ("0" * 64,), refused.append) == "none"
    assert digest in refused[0]
    assert "No such file" in refused[1]


def test_what_is_no_digest_is_refused_in_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "harmony.yaml"
    path.write_text("advanced:\n  model:\n    allowed_digests: [abc]\n", encoding="utf-8")
    with pytest.raises(Exception, match="allowed_digests"):
        load_settings(path, environ={})


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_malicious_checkpoint_of_torch_raises_and_does_not_run(folder: Path, tmp_path: Path, legacy: bool) -> None:
    witness = tmp_path / "ran"
    written = io.BytesIO()
    torch.save({"weights": Payload(witness)}, written, _use_new_zipfile_serialization=not legacy)
    data = written.getvalue()
    assert zipfile.is_zipfile(io.BytesIO(data)) is not legacy
    (folder / "weights.safetensors").write_bytes(data)
    spec = (folder / "spec.json").read_text(encoding="utf-8")
    before = hashlib.sha256((SHIPPED / "weights.safetensors").read_bytes()).hexdigest()
    # Even one whose digest its own spec vouches for.
    (folder / "spec.json").write_text(spec.replace(before, hashlib.sha256(data).hexdigest()), encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(folder)
    assert not witness.exists()


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_header_that_promises_too_much_is_refused(folder: Path, length: int) -> None:
    data = length.to_bytes(8, "little") + b"{}"
    (folder / "weights.safetensors").write_bytes(data)
    spec = (folder / "spec.json").read_text(encoding="utf-8")
    before = hashlib.sha256((SHIPPED / "weights.safetensors").read_bytes()).hexdigest()
    (folder / "spec.json").write_text(spec.replace(before, hashlib.sha256(data).hexdigest()), encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(folder)
