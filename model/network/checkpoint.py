"""Weights on disk: safetensors, a JSON spec beside them, a SHA-256 digest of both. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from model.network.network import Network
from model.network.spec import SPEC_VERSION, NetworkSpec

WEIGHTS, SPEC = "weights.safetensors", "spec.json"
_MAX_BYTES = 200 * 1024 * 1024


class CheckpointError(ValueError):
    """A checkpoint that must not be used; the message says what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A network and its description.

    Attributes:
        network: with its weights.
        digest: SHA-256 of the weights, hexadecimal.
        about: the description given to `save`: training data, steps, scores.
    """

    network: Network
    digest: str
    about: Mapping[str, Any]


def save(network: Network, folder: Path, about: Mapping[str, Any]) -> str:
    """Write weights and spec; each file replaces the older one at once.

    Returns:
        The digest.

    Raises:
        CheckpointError: the weights are not finite.
    """
    from safetensors.torch import save as to_bytes

    weights = {
        name: value.detach().to("cpu", torch.float32).contiguous() for name, value in network.state_dict().items()
    }
    _check_finite(weights, "the network")
    data = to_bytes(weights)
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"spec": asdict(network.spec), "sha256": digest, "about": dict(about)}
    _write(folder / WEIGHTS, data)
    _write(folder / SPEC, (json.dumps(spec, indent=2, sort_keys=True) + "\n").encode())
    return digest


def load(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, with all checks.

    Raises:
        CheckpointError: files missing or unreadable, another version, unknown settings, a digest that does not fit,
            tensors that are missing, of another shape or not finite.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load as from_bytes
    except ImportError:
        raise CheckpointError("the package safetensors is not installed: install harmony-scaler anew") from None
    spec, digest, about = _read_spec(folder / SPEC)
    path = folder / WEIGHTS
    data = _read(path)
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise CheckpointError(
            f"{path}: the digest of the weights is {actual[:12]}..., the spec says {digest[:12]}...: the file is "
            "damaged or belongs to another spec; fetch both again or train anew"
        )
    try:
        weights = from_bytes(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error})") from None
    network = Network(spec)
    state = network.state_dict()
    if missing := sorted(state.keys() ^ weights.keys()):
        raise CheckpointError(f"{path}: tensors do not match the spec, first {missing[0]!r}")
    for name, value in weights.items():
        if value.shape != state[name].shape:
            raise CheckpointError(f"{path}: {name} has shape {tuple(value.shape)}, wanted {tuple(state[name].shape)}")
    _check_finite(weights, str(path))
    network.load_state_dict(weights)
    return Checkpoint(network.eval(), digest, about)


def _read_spec(path: Path) -> tuple[NetworkSpec, str, dict[str, Any]]:
    try:
        body = json.loads(_read(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(body, dict) or not isinstance(body.get("spec"), dict) or not isinstance(body.get("sha256"), str):
        raise CheckpointError(f"{path}: wanted an object with spec and sha256")
    settings = body["spec"]
    version = settings.get("version")
    if version != SPEC_VERSION:
        raise CheckpointError(
            f"{path}: spec of version {version}, this program reads version {SPEC_VERSION}: use weights of this "
            "release, or train anew with `harmony train`"
        )
    if unknown := sorted(settings.keys() - {f.name for f in fields(NetworkSpec)}):
        raise CheckpointError(f"{path}: unknown setting {unknown[0]!r}")
    try:
        spec = NetworkSpec(**settings)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    about = body.get("about")
    return spec, body["sha256"], about if isinstance(about, dict) else {}


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path}: larger than {_MAX_BYTES // 1024**2} MiB, which is no network of ours")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


def _check_finite(weights: Mapping[str, torch.Tensor], where: str) -> None:
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise CheckpointError(f"{where}: {name} holds numbers that are not finite: such weights forecast nothing")
