"""Sizes counted from `config.json`, against the totals that are published of the models."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.lab.capacity.model_files import given_size, model_size
from tests.infra.lab.capacity.configs import LLAMA_70B, PUBLISHED


def sized(folder: Path, body: Any, params: float | None = None) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    return model_size(path, params)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name: str, tmp_path: Path) -> None:
    body, params, active, cached = PUBLISHED[name]
    size = sized(tmp_path, body)
    assert size.params / 1e9 == pytest.approx(params, rel=0.005)
    assert size.active_params / 1e9 == pytest.approx(active, rel=0.02)
    assert size.kv_bytes_per_token == cached
    assert size.bytes_per_param == 2.0


def test_a_text_model_within_a_larger_one_is_read(tmp_path: Path) -> None:
    assert sized(tmp_path, {"model_type": "both", "text_config": LLAMA_70B}) == sized(tmp_path, LLAMA_70B)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"torch_dtype": "float32"}, 4.0),
        ({"dtype": "bfloat16"}, 2.0),
        ({"quantization_config": {"quant_method": "fp8"}}, 1.0),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 0.5),
    ],
)
def test_weights_take_what_they_are_stored_as(more: dict[str, Any], expected: float, tmp_path: Path) -> None:
    assert sized(tmp_path, LLAMA_70B | more).bytes_per_param == expected


def test_a_given_count_takes_the_place_of_the_counted_one(tmp_path: Path) -> None:
    body = PUBLISHED["Mixtral 8x7B"][0]
    counted, told = sized(tmp_path, body), sized(tmp_path, body, 60e9)
    assert told.params == 60e9
    assert told.active_params / told.params == pytest.approx(counted.active_params / counted.params)
    assert told.kv_bytes_per_token == counted.kv_bytes_per_token
    for wrong in (0.0, -1.0, 7.0, 1e20):
        with pytest.raises(HarmonyError, match="such as 70e9"):
            given_size(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("[1]", "holds a list, not an object"),
        ("{}", "missing required field `hidden_size`"),
        (json.dumps(LLAMA_70B | {"num_hidden_layers": "80"}), "Expected `int`, got `str`.*num_hidden_layers"),
        (json.dumps(LLAMA_70B | {"hidden_size": -5}), "Expected `int` >= 1 - at `.\\.hidden_size`"),
        (json.dumps(LLAMA_70B | {"vocab_size": 10**400}), "vocab_size"),
    ],
)
def test_what_is_no_model_is_told_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HarmonyError, match=says) as raised:
        model_size(path)
    assert raised.value.exit_code == 2
    with pytest.raises(HarmonyError, match="cannot be read"):
        model_size(tmp_path / "none.json")


NAMES = [
    *LLAMA_70B,
    "num_experts",
    "num_local_experts",
    "kv_lora_rank",
    "quantization_config",
    "text_config",
    "head_dim",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4))
def test_whatever_a_file_holds_the_answer_is_a_size_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    with contextlib.suppress(HarmonyError):
        size = sized(tmp_path_factory.mktemp("any"), LLAMA_70B | changes)
        assert 0 < size.active_params <= size.params
        assert size.kv_bytes_per_token > 0
