"""The roofline: its two formulas, the laws that follow, and that the weights must fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.lab.capacity.model_files import accelerator_of
from model.capacity.roofline import ACCELERATORS, Accelerator, ModelSize, iteration_costs

MODEL = ModelSize(params=8e9, active_params=8e9, num_layers=32, attention_width=4096, kv_bytes_per_token=131_072)
CARD = ACCELERATORS["h100"]
sizes = st.builds(
    lambda params, share, layers, width, cached: ModelSize(params, params * share, layers, width, cached),
    st.floats(1e8, 3e10), st.floats(0.05, 1.0), st.integers(1, 100), st.integers(64, 16_384), st.floats(1e3, 1e6),
)  # fmt: skip


def test_the_bounds_are_those_of_the_data_sheet_and_parts_of_them() -> None:
    costs = iteration_costs(MODEL, CARD)
    prompt_s = (2 * 8e9 + 2 * 32 * 4096 * 1000) * 1000 / 989e12
    told_s = costs.prefill_token_s * 1000 + costs.prefill_token_sq_s * 1000 * 1000
    assert prompt_s < told_s == pytest.approx(2 * prompt_s)
    assert 16e9 / 3.35e12 < costs.base_s < 3 * 16e9 / 3.35e12
    assert 131_072 / 3.35e12 < costs.kv_token_s < 3 * 131_072 / 3.35e12
    assert costs.kv_capacity_tokens == int((0.9 * 80e9 - 16e9) / 131_072)


@given(sizes, st.sampled_from(sorted(ACCELERATORS)), st.integers(1, 8))
def test_faster_cards_are_no_slower_and_larger_models_no_faster(size: ModelSize, name: str, num: int) -> None:
    card = Accelerator(ACCELERATORS[name].flops_per_s, ACCELERATORS[name].bytes_per_s, 1e12)
    costs = iteration_costs(size, card, num)
    faster = iteration_costs(size, Accelerator(2 * card.flops_per_s, 2 * card.bytes_per_s, 1e12), num)
    larger = iteration_costs(replace(size, params=2 * size.params, active_params=2 * size.active_params), card, num)
    for part in ("base_s", "prefill_token_s", "prefill_token_sq_s", "sequence_s", "kv_token_s"):
        assert 0 < getattr(faster, part) <= getattr(costs, part) <= getattr(larger, part)
    assert larger.kv_capacity_tokens < costs.kv_capacity_tokens == faster.kv_capacity_tokens
    assert iteration_costs(size, card, num + 1).kv_capacity_tokens > costs.kv_capacity_tokens


def test_weights_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ValueError, match="weights of 160 GB leave no room for requests in the 72 GB"):
        iteration_costs(replace(MODEL, params=80e9), CARD)
    assert iteration_costs(replace(MODEL, params=80e9), CARD, 4).kv_capacity_tokens > 0


def test_cards_are_found_however_they_are_written() -> None:
    assert accelerator_of(" H100 ") == CARD
    with pytest.raises(HarmonyError, match="Unknown GPU 'h1000': choose from t4, "):
        accelerator_of("h1000")
