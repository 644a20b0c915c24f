"""A decoder of one's own under the mapper: points, dead letters, and the end when it is broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.collect.formats.raw_record import NOT_MEASURED
from infra.collect.loop import reader_of
from infra.collect.mapper import RawFold
from infra.collect.mapping.readings import Assembler
from infra.collect.plugin import PluginDecoder
from infra.console.errors import HarmonyError
from infra.operate.plugins import examine
from infra.settings.limits import PluginLimits
from infra.settings.load import Settings
from infra.settings.plugins import find
from streams.log import LogRecord
from streams.records.strict_json import MalformedError

LIMITS = PluginLimits(60.0, 3, 2)
STAMP_MS = 1_763_636_415_000
LINES = b"""vllm:num_requests_running;model_name=chat,instance=e1;1763636415;41
vllm:num_requests_waiting;model_name=chat,instance=e1;;3
"""


@dataclass(frozen=True)
class _Made:
    """Stands for `Plugin`."""

    answer: Callable[[bytes], Any]
    kind: str = "decoder"
    name: str = "mine"
    distribution: str = "p"
    version: str = "1"

    def make(self, options: Mapping[str, Any]) -> object:
        class Own:
            def decode(inner, value: bytes, stamp_ms: int) -> Any:  # noqa: N805
                return self.answer(value)

        return Own()


def made(answer: Callable[[bytes], Any], limits: PluginLimits = LIMITS) -> PluginDecoder:
    return PluginDecoder(_Made(answer), {}, limits)  # type: ignore[arg-type]


def fold_of(decoder: PluginDecoder) -> RawFold:
    reader = reader_of(Settings(), ("vllm",), workload="{model_name}")
    return RawFold(Assembler(reader, 1.0), Settings().topics, decoder.read)


def test_the_examples_lines_become_telemetry(example: Path) -> None:
    fold = fold_of(PluginDecoder(find("decoder", "semicolons"), {}, LIMITS))
    fold.fold("telemetry.raw", LogRecord(0, STAMP_MS, None, LINES), 0, 0.0)
    (record,) = fold.take(None)
    assert record.key == b"chat"
    assert b'"num_requests_running"' in (record.value or b"")
    assert fold.points == 2


def test_bad_records_are_dead_lettered_and_good_ones_go_on(example: Path) -> None:
    fold = fold_of(PluginDecoder(find("decoder", "semicolons"), {}, LIMITS))
    bad = [b"nothing", b"\xff", b"a;b=c;x;1", b"a;b=c;1;nan"]
    for offset, value in enumerate([*bad * 3, LINES]):
        fold.fold("telemetry.raw", LogRecord(offset, STAMP_MS, None, value), 0, 0.0)
    assert len(fold.take_letters()) == len(bad) * 3
    assert fold.points == 2
    assert [f for f in examine(find("decoder", "semicolons"), {}) if not f.ok] == []


def test_a_broken_decoder_ends_the_mapper_before_it_empties_the_topic() -> None:
    decoder = made(lambda _: 1 / 0)
    for _ in range(2):
        with pytest.raises(MalformedError, match="ZeroDivisionError"):
            decoder.read(b"x", STAMP_MS)
    with pytest.raises(HarmonyError, match="and so did the calls before it"):
        decoder.read(b"x", STAMP_MS)


def test_a_decoder_that_hangs_ends_the_mapper_before_it_empties_the_topic() -> None:
    go_on = threading.Event()
    decoder = made(lambda _: go_on.wait(60), PluginLimits(0.02, 3, 2))
    for words in ("no answer within", "its last call still runs"):
        with pytest.raises(MalformedError, match=words):
            decoder.read(b"x", STAMP_MS)
    with pytest.raises(HarmonyError, match="and so did the calls before it"):
        decoder.read(b"x", STAMP_MS)
    go_on.set()


def test_one_record_that_took_too_long_takes_no_other_along() -> None:
    go_on = threading.Event()
    decoder = made(lambda value: go_on.wait(60) and [] if value == b"slow" else [("a", {}, 1, 1.0)])
    decoder._guarded._limit_s = 0.02
    with pytest.raises(MalformedError, match="no answer within"):
        decoder.read(b"slow", STAMP_MS)
    # A machine under load may need more than the limit for any answer at all.
    decoder._guarded._limit_s = 60.0
    threading.Timer(0.05, go_on.set).start()
    assert len(decoder.read(b"good", STAMP_MS).points) == 1


def test_one_good_record_between_bad_ones_keeps_it_going() -> None:
    decoder = made(lambda value: [("a", {}, 1, 1.0)] if value == b"good" else 1 / 0)
    for _ in range(5):
        for _ in range(2):
            with pytest.raises(MalformedError):
                decoder.read(b"bad", STAMP_MS)
        assert len(decoder.read(b"good", STAMP_MS).points) == 1


def test_numbers_that_are_none_are_passed_over_and_counted() -> None:
    inf = float("inf")
    raw = made(lambda _: [("a", {}, 1, 1.0), ("b", {}, 1, inf)]).read(b"", STAMP_MS)
    assert [p.name for p in raw.points] == ["a"]
    assert raw.passed_over == {NOT_MEASURED: 1}


@pytest.mark.parametrize("ts_ms", [-1, 2**53])
def test_a_time_that_no_record_may_hold_costs_the_record(ts_ms: int) -> None:
    with pytest.raises(MalformedError, match="is no time in milliseconds"):
        made(lambda _: [("a", {}, ts_ms, 1.0)]).read(b"", STAMP_MS)
