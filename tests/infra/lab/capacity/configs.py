"""Architectures as their `config.json` states them, with the totals that their authors publish."""

from __future__ import annotations

from typing import Any

LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000, "torch_dtype": "float16",
}  # fmt: skip
# Billions of parameters, of those that one token meets, and bytes of a cached token.
PUBLISHED: dict[str, tuple[dict[str, Any], float, float, int]] = {
    "Llama 2 70B": (LLAMA_70B, 68.98, 68.98, 327_680),
    "Llama 3.1 8B": (
        {
            "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        },
        8.03, 8.03, 131_072,
    ),
    "Mixtral 8x7B": (
        {
            "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46.7, 12.9, 131_072,
    ),
    "DeepSeek-V3": (
        {
            "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "vocab_size": 129280,
        },
        671.0, 37.0, 70_272,
    ),
    "Qwen3 30B A3B": (
        {
            "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
            "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
        },
        30.5, 3.3, 98_304,
    ),
    "OPT 13B": (
        {
            "model_type": "opt", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
            "ffn_dim": 20480, "vocab_size": 50272, "tie_word_embeddings": True,
        },
        12.85, 12.85, 819_200,
    ),
    "BLOOM": (
        {
            "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880,
            "tie_word_embeddings": True,
        },
        176.2, 176.2, 4_014_080,
    ),
}  # fmt: skip
