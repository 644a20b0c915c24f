"""What an operator says on the command line: durations, and words that ingest reads or that are refused at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.console.errors import HarmonyError
from infra.kafka.operator import encode_checked, parse_duration_ms, word
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.decode import RecordDecoder
from streams.records.schema import ControlRecord


@pytest.mark.parametrize(
    ("text", "ms"), [("30s", 30_000), ("2h", 7_200_000), ("1h30m", 5_400_000), (" 1D ", 86_400_000), ("0.5m", 30_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *((text, "write 90s") for text in ("", "2", "h", "-1h", "2 hours", "1h x", "1h-30m", "1e3s")),
        ("0s", "positive"),
        ("9" * 400 + "d", "positive, and shorter"),
        ("0.0001s", "shorter than a millisecond"),
    ],
)
def test_what_is_no_duration_says_how_to_write_one(text: str, told: str) -> None:
    with pytest.raises(HarmonyError, match=f"--for: .*{told}") as raised:
        parse_duration_ms(text)
    assert raised.value.exit_code == 2


@given(st.integers(1, 10**6), st.sampled_from("smhd"))
def test_any_whole_number_of_a_unit_is_a_duration(number: int, unit: str) -> None:
    assert parse_duration_ms(f"{number}{unit}") == number * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[unit] * 1_000


@pytest.mark.parametrize(
    ("action", "workload", "more"),
    [
        ("pin", "prod/llm/chat", {"replicas": 3, "until_ts_ms": 9}),
        ("unpin", "w", {}),
        ("mode", "w", {"mode": "act"}),
        ("pause", None, {"reason": "incident 7"}),
        ("resume", "w", {}),
    ],
)
def test_a_word_is_what_ingest_reads(action: str, workload: str | None, more: dict[str, Any]) -> None:
    control = word(action, workload, 5, **more)
    decoder = RecordDecoder(DEFAULT_CATALOGUE, "requests", 65_536)
    assert decoder.decode(encode_checked(control), None) == ControlRecord(control)


def test_words_differ_by_id_only_so_that_the_same_order_can_be_given_again() -> None:
    first, second = word("pause", None, 5), word("pause", None, 5)
    assert first.control_id != second.control_id
    assert msgspec.structs.replace(first, control_id=second.control_id) == second


@pytest.mark.parametrize(
    ("action", "workload", "more", "says"),
    [
        ("pin", "w", {}, "needs replicas"),
        ("pin", None, {"replicas": 1}, "needs a workload"),
        ("mode", "w", {"mode": "yolo"}, "neither observe nor act"),
        ("pause", "a\nb", {}, "printable"),
        ("pause", None, {"reason": "<b>"}, "reason"),
    ],
)
def test_a_word_that_ingest_would_refuse_is_refused_here(
    action: str, workload: str | None, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(HarmonyError, match=says) as raised:
        encode_checked(word(action, workload, 5, **more))
    assert raised.value.exit_code == 2
