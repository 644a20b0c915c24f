"""A small network with random weights of real size: laws must hold for any weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from model.network.network import Network
from model.network.spec import NetworkSpec

SMALL = NetworkSpec(width=32, hidden=48, num_blocks=1, num_heads=2, latents=4, head_hidden=24, num_atoms=6)


def small_network(seed: int = 0, **changes: object) -> Network:
    """Random weights, large enough that every part matters."""
    torch.manual_seed(seed)
    network = Network(replace(SMALL, **changes))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("weight") and parameter.dim() == 2:
                parameter.normal_(std=0.5 / parameter.shape[1] ** 0.5)
    return network.eval()
