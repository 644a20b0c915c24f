"""What an iteration of a serving engine takes, estimated from the model's size and the accelerator's data sheet.

Reading a prompt of L tokens is bound by arithmetic, `(2 params + 2 layers width L) L / FLOPS`; generating by memory,
for every iteration reads the weights and the cache of all that run, `(weights + KV) / bandwidth`. Of either an engine
reaches a part. Beside it stand, in each iteration, the host's share and, where several accelerators share a layer, what
they wait for each other.
Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009; the counts of R. Pope et al., "Efficiently
Scaling Transformer Inference", MLSys 2023. Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What engines reach, held against measured ones by `python -m tests.bench.roofline_check`.
# Share of the peak arithmetic that an engine reaches.
_FLOPS_UTILIZATION: Final = 0.5
# Share of the peak bandwidth that an engine reaches.
_BANDWIDTH_UTILIZATION: Final = 0.6
# Share of the memory for weights and cache; the rest is for activations.
_MEMORY_RATIO: Final = 0.9
# Time of the host in each iteration.
_HOST_S: Final = 0.001
# Synchronisation time per layer for each further accelerator.
_LAYER_SYNC_S: Final = 40e-6
OFF_BY: Final = 2.2  # of a capacity that rests on these, two times of three, by the same command


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device.

    Attributes:
        flops_per_s: dense, at 16 bits.
        bytes_per_s: of its memory.
        memory_bytes: of which weights and cache take nine tenths.
    """

    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A decoder of transformer layers.

    Attributes:
        params: all of them.
        active_params: that one token meets; fewer than all in a mixture of experts.
        num_layers: of attention.
        attention_width: of a layer's queries, all heads together.
        kv_bytes_per_token: in the cache, all layers together.
        bytes_per_param: as the weights are stored.
    """

    params: float
    active_params: float
    num_layers: int
    attention_width: int
    kv_bytes_per_token: float
    bytes_per_param: float = 2.0

    @property
    def weight_bytes(self) -> float:
        return self.params * self.bytes_per_param


@dataclass(frozen=True, slots=True)
class IterationCosts:
    """Seconds of an iteration that reads P prompt tokens and generates for B requests, with KV tokens in the cache.

    `base + prefill_token P + prefill_token_sq sum(chunk context) + sequence B + kv_token KV`.

    Attributes:
        base_s: of every iteration.
        prefill_token_s: per prompt token read.
        prefill_token_sq_s: per prompt token and token before it.
        sequence_s: per request that generates.
        kv_token_s: per token in the cache.
        kv_capacity_tokens: that the cache holds.
    """

    base_s: float
    prefill_token_s: float
    prefill_token_sq_s: float
    sequence_s: float
    kv_token_s: float
    kv_capacity_tokens: int


def iteration_costs(model: ModelSize, accelerator: Accelerator, num_accelerators: int = 1) -> IterationCosts:
    """Costs of a replica that spreads every layer over its accelerators.

    Raises:
        ValueError: the weights leave no room for a cache of requests.
    """
    flops_per_s = accelerator.flops_per_s * num_accelerators * _FLOPS_UTILIZATION
    bytes_per_s = accelerator.bytes_per_s * num_accelerators * _BANDWIDTH_UTILIZATION
    room_bytes = accelerator.memory_bytes * num_accelerators * _MEMORY_RATIO
    tokens = int((room_bytes - model.weight_bytes) / model.kv_bytes_per_token)
    if tokens < 1:
        raise ValueError(
            f"weights of {model.weight_bytes / 1e9:.0f} GB leave no room for requests in the {room_bytes / 1e9:.0f} GB "
            f"that may be used of {num_accelerators} accelerator{'s' if num_accelerators > 1 else ''}"
        )
    together_s = _LAYER_SYNC_S * model.num_layers * (num_accelerators - 1)
    token_s = 2.0 * model.active_params / flops_per_s
    return IterationCosts(
        base_s=model.weight_bytes / bytes_per_s + together_s + _HOST_S,
        prefill_token_s=token_s,
        prefill_token_sq_s=2.0 * model.num_layers * model.attention_width / flops_per_s,
        sequence_s=token_s,
        kv_token_s=model.kv_bytes_per_token / bytes_per_s,
        kv_capacity_tokens=tokens,
    )


# Data sheets of the accelerators that engines run on: dense 16-bit FLOPS, memory bandwidth, memory.


def _sheet(tflops: float, gbytes_per_s: float, gbytes: float) -> Accelerator:
    return Accelerator(tflops * 1e12, gbytes_per_s * 1e9, gbytes * 1e9)


# As the makers state them: without sparsity, accumulating in 32 bits.
ACCELERATORS: Final[dict[str, Accelerator]] = {
    "t4": _sheet(65, 320, 16),
    "v100-32gb": _sheet(125, 900, 32),
    "a10": _sheet(125, 600, 24),
    "l4": _sheet(121, 300, 24),
    "l40s": _sheet(362, 864, 48),
    "a100-40gb": _sheet(312, 1_555, 40),
    "a100-80gb": _sheet(312, 2_039, 80),
    "h100-pcie": _sheet(756, 2_000, 80),
    "h100": _sheet(989, 3_350, 80),
    "h200": _sheet(989, 4_800, 141),
    "b200": _sheet(2_250, 8_000, 180),
    "mi300x": _sheet(1_307, 5_300, 192),
}

# Factor that a former GPU's capacity, scaled by data sheets, may be off by, two times of three: of Llama-2 70B on A100
# and H100, by `python -m infra.lab.capacity.law_errors --move`.
SCALED_OFF_BY: Final = 1.35


def cost_ratios(before: str, now: str) -> tuple[float, float, float, float] | None:
    """By which factor the costs of an iteration (`model.capacity.law`) change from one GPU to another.

    What reads memory (the weights of an iteration, the cache) goes by bandwidth, what computes (a prompt token, a
    sequence) by arithmetic. None where a name is not among `ACCELERATORS`.

    >>> cost_ratios("a100-80gb", "A100-80GB")
    (1.0, 1.0, 1.0, 1.0)
    """
    old, new = (ACCELERATORS.get(name.strip().lower()) for name in (before, now))
    if old is None or new is None:
        return None
    memory, arithmetic = old.bytes_per_s / new.bytes_per_s, old.flops_per_s / new.flops_per_s
    return memory, arithmetic, arithmetic, memory
