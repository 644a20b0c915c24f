"""A training run on disk: put away at intervals, taken up again where it stopped.

State is safetensors (weights, averages, the optimizer's moments) with a JSON file of counters: nothing is unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.network.checkpoint import CheckpointError
from model.training.loop import Trainer

STATE, COUNTERS = "training.safetensors", "training.json"


def put_away(trainer: Trainer, folder: Path, identity: dict[str, Any]) -> None:
    """Write the state of a run; `identity` says which run it is (data, seed, shape)."""
    from safetensors.torch import save

    state = trainer.state()
    tensors: dict[str, Tensor] = {}
    for part in ("network", "averaged", "best"):
        tensors |= {f"{part}/{name}": value.detach().clone() for name, value in state[part].items()}
    for index, moments in state["optimizer"]["state"].items():
        tensors |= {f"optimizer/{index}/{name}": torch.as_tensor(value).clone() for name, value in moments.items()}
    counters = {name: state[name] for name in ("step", "best_score", "history", "options")}
    counters |= {"identity": identity, "groups": state["optimizer"]["param_groups"]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in ((STATE, save(tensors)), (COUNTERS, json.dumps(counters).encode())):
        partial = folder / f"{name}.part"
        partial.write_bytes(data)
        partial.replace(folder / name)


def take_up(trainer: Trainer, folder: Path, identity: dict[str, Any]) -> bool:
    """Continue the run in `folder`; False where there is none.

    Raises:
        CheckpointError: the files are damaged, or of another run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not (folder / COUNTERS).is_file():
        return False
    try:
        counters = json.loads((folder / COUNTERS).read_text())
        tensors = load((folder / STATE).read_bytes())
        if counters["identity"] != json.loads(json.dumps(identity)):
            raise CheckpointError(
                f"{folder}: holds a run with other settings ({counters['identity']}); choose another folder"
            )
        state: dict[str, Any] = {name: counters[name] for name in ("step", "best_score", "history")}
        for part in ("network", "averaged", "best"):
            prefix = f"{part}/"
            state[part] = {name[len(prefix) :]: v for name, v in tensors.items() if name.startswith(prefix)}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                moments.setdefault(int(index), {})[key] = value
        state["optimizer"] = {"state": moments, "param_groups": counters["groups"]}
        trainer.resume(state)
    except CheckpointError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: the run cannot be taken up ({error}); start anew in another folder") from None
    return True
