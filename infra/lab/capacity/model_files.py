"""The size of a model by its `config.json`, as models are published with."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from infra.console.errors import HarmonyError
from model.capacity.roofline import ACCELERATORS, Accelerator, ModelSize

# Two matrices in a layer's feed-forward part instead of three.
_NOT_GATED: Final = frozenset(
    {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "mpt", "starcoder2"}
)
_BYTES: Final = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float8_e4m3fn": 1.0}
# Other names that families of models have for the same.
_OTHER_NAMES: Final = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("ffn_dim", "n_inner"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk"),
}
_Positive = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**7)]


class _Quantized(msgspec.Struct):
    quant_method: str | None = None
    bits: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None


class _Config(msgspec.Struct):
    """What is read of a config: as Llama's, Mixtral's and DeepSeek's name it."""

    hidden_size: _Positive
    num_hidden_layers: _Positive
    num_attention_heads: _Positive
    vocab_size: _Positive
    model_type: str | None = None
    num_key_value_heads: _Positive | None = None
    head_dim: _Positive | None = None
    multi_query: bool | None = None
    new_decoder_architecture: bool | None = None
    kv_lora_rank: _Positive | None = None
    q_lora_rank: _Positive | None = None
    qk_nope_head_dim: _Positive | None = None
    qk_rope_head_dim: _Count | None = None
    v_head_dim: _Positive | None = None
    intermediate_size: _Positive | None = None
    num_experts: _Count | None = None
    num_experts_per_tok: _Positive | None = None
    moe_intermediate_size: _Positive | None = None
    shared_expert_intermediate_size: _Count | None = None
    n_shared_experts: _Count | None = None
    first_k_dense_replace: _Count | None = None
    tie_word_embeddings: bool | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    quantization_config: _Quantized | None = None

    @property
    def head(self) -> int:
        return self.head_dim or max(self.hidden_size // self.num_attention_heads, 1)

    @property
    def bytes_per_param(self) -> float:
        stored = self.quantization_config
        if stored is not None and stored.bits is not None:
            return stored.bits / 8
        if stored is not None and "fp8" in (stored.quant_method or ""):
            return 1.0
        return _BYTES.get(self.dtype or self.torch_dtype or "", 2.0)


def model_size(path: Path, params: float | None = None) -> ModelSize:
    """The size that a file tells of.

    Args:
        params: in place of what is counted.

    Raises:
        HarmonyError: unreadable, no JSON object, or it lacks a number (exit code 2).
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarmonyError(f"{path}: cannot be read ({error.strerror or error}).", 2) from None
    except (ValueError, RecursionError):
        raise HarmonyError(f"{path}: is not JSON; give the config.json of a model.", 2) from None
    if not isinstance(body, dict):
        raise HarmonyError(f"{path}: holds a {type(body).__name__}, not an object; give the config.json of a model.", 2)
    try:
        size = size_of(body)
    except msgspec.ValidationError as error:
        raise HarmonyError(f"{path}: is not the config.json of a decoder: {error}.", 2) from None
    if params is None:
        return size
    return replace(size, params=params, active_params=params * size.active_params / size.params)


def size_of(body: dict[str, Any]) -> ModelSize:
    """What such a file says.

    Raises:
        ValidationError: it lacks a number, or holds something else.
    """
    config = msgspec.convert(_with_common_names(body), _Config)
    layers = config.num_hidden_layers
    attention, width, cached = _attention(config)
    every, met = _feed_forward(config)
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return ModelSize(
        params=layers * attention + every + embeddings,
        active_params=layers * attention + met + embeddings,
        num_layers=layers,
        attention_width=width,
        kv_bytes_per_token=2.0 * layers * cached,
        bytes_per_param=config.bytes_per_param,
    )


def given_size(params: float) -> float:
    """A count of parameters.

    Raises:
        HarmonyError: none that a model could have (exit code 2).
    """
    if not (math.isfinite(params) and 1e6 <= params <= 1e14):
        raise HarmonyError(f"--params must be a count of 1e6 to 1e14, such as 70e9, got {params:g}.", 2)
    return params


def _with_common_names(config: dict[str, Any]) -> dict[str, Any]:
    """A config whose numbers have one name each; of a model of text and more, those of its text."""
    inner = config.get("text_config")
    body = {**config, **inner} if isinstance(inner, dict) else dict(config)
    for name, others in _OTHER_NAMES.items():
        for other in others:
            if body.get(name) is None:
                body[name] = body.get(other)
    return {name: value for name, value in body.items() if value is not None}


def _attention(config: _Config) -> tuple[int, int, int]:
    """Of one layer: parameters, width of its queries, and numbers cached per token."""
    hidden, heads, head = config.hidden_size, config.num_attention_heads, config.head
    if config.kv_lora_rank is None:
        kv_heads = config.num_key_value_heads or heads
        if config.multi_query and not config.new_decoder_architecture:
            kv_heads = 1
        return 2 * hidden * head * (heads + kv_heads), heads * head, 2 * kv_heads * head
    # Keys and values are made of one latent vector per token, and only it and the rotated part are cached.
    latent, plain, rotated = config.kv_lora_rank, config.qk_nope_head_dim or head, config.qk_rope_head_dim or 0
    query_width, value = heads * (plain + rotated), config.v_head_dim or head
    query_params = hidden * query_width if config.q_lora_rank is None else config.q_lora_rank * (hidden + query_width)
    params = query_params + hidden * (latent + rotated) + latent * heads * (plain + value) + heads * value * hidden
    return params, query_width, latent + rotated


def _feed_forward(config: _Config) -> tuple[int, int]:
    """Parameters of all layers' feed-forward parts, and those that one token meets."""
    layers = config.num_hidden_layers
    row = (2 if config.model_type in _NOT_GATED else 3) * config.hidden_size
    width = config.intermediate_size or 4 * config.hidden_size
    experts = config.num_experts or 0
    if experts == 0:
        return layers * row * width, layers * row * width
    each = row * (config.moe_intermediate_size or width)
    plain = min(config.first_k_dense_replace or 0, layers)
    shared = row * (config.shared_expert_intermediate_size or 0) or (config.n_shared_experts or 0) * each
    always = plain * row * width + (layers - plain) * (shared + experts * config.hidden_size)
    chosen = min(config.num_experts_per_tok or 1, experts)
    return always + (layers - plain) * experts * each, always + (layers - plain) * chosen * each


def accelerator_of(name: str) -> Accelerator:
    """The data sheet of that name, however its letters are written.

    Raises:
        HarmonyError: there is none (exit code 2).
    """
    accelerator = ACCELERATORS.get(name.strip().lower())
    if accelerator is None:
        raise HarmonyError(f"Unknown GPU {name!r}: choose from {', '.join(ACCELERATORS)}.", 2)
    return accelerator
