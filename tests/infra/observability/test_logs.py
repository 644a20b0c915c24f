"""Logging: one JSON object per line, control characters escaped, volume bounded per event name."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from infra.console.text import printable
from infra.observability.logs import RateLimit, configure_logging, escape_values


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_json_on_stderr_when_it_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    structlog.get_logger("infra").info("worker_started", workload="a\nb\x1b[2J", ids=[b"\x00", 1])
    structlog.get_logger("infra").debug("too_low")
    (line,) = lines(capsys)
    assert line["event"] == "worker_started"
    assert line["level"] == "info"
    assert line["workload"] == "a\\nb\\x1b[2J"
    assert line["ids"] == ["\\x00", 1]
    assert str(line["timestamp"]).endswith("Z")


def test_libraries_speak_from_warning_on_through_the_same_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    for name in ("faust.worker", "mode.service", "aiokafka.consumer"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("broker %s\nis gone", "n1")
    assert [(x["event"], x["message"], x["level"]) for x in lines(capsys)] == [
        (name, "broker n1\\nis gone", "warning") for name in ("faust.worker", "mode.service", "aiokafka.consumer")
    ]


def test_a_flood_of_one_event_does_not_silence_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", per_event_per_minute=3)
    log = structlog.get_logger("infra")
    for i in range(50):
        log.warning("dead_letter", n=i)
        logging.getLogger("aiokafka").error("failure number %d", i)
    log.warning("other")
    assert [x["event"] for x in lines(capsys)] == ["dead_letter", "aiokafka"] * 3 + ["other"]


def test_exceptions_keep_their_lines_and_lose_their_controls(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    try:
        raise ValueError("bad \x1b[31m value")
    except ValueError:
        structlog.get_logger("infra").exception("failed")
    (line,) = lines(capsys)
    trace = str(line["exception"])
    assert trace.splitlines()[-1] == "ValueError: bad \\x1b[31m value"
    assert trace.startswith("Traceback")


def test_the_console_form_is_for_people_and_has_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", output="console")
    structlog.get_logger("infra").info("ready", port=9464)
    text = capsys.readouterr().err
    assert "ready" in text
    assert "port=9464" in text
    assert "\x1b" not in text


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        configure_logging("loud")


def test_what_was_suppressed_is_told_in_the_next_period() -> None:
    now_s = 0.0
    limit = RateLimit(2, 60.0, clock=lambda: now_s)
    passed = []
    for at_s in (0, 1, 2, 3, 61, 62, 63, 130):
        now_s = float(at_s)
        try:
            passed.append((at_s, limit(None, "info", {"event": "e"}).get("suppressed")))
        except structlog.DropEvent:
            continue
    assert passed == [(0, None), (1, None), (61, 2), (62, None), (130, 1)]


@given(st.lists(st.text(max_size=8), max_size=80))
def test_the_memory_of_names_is_bounded(names: list[str]) -> None:
    limit = RateLimit(1, 60.0, clock=lambda: 0.0, max_names=5)
    passed = set()
    for name in names:
        try:
            limit(None, "info", {"event": name})
            passed.add(name)
        except structlog.DropEvent:
            continue
    assert len(limit._windows) <= 6
    assert set(list(dict.fromkeys(names))[:5]) <= passed


@given(st.text())
def test_printable_leaves_nothing_that_steers_a_terminal(text: str) -> None:
    safe = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202a\u202e\u2066\u2028\u2029\u200f" for c in safe)
    assert len(safe.splitlines()) <= 1
    if text.isprintable():
        assert safe == text


@given(st.text(), st.integers(1, 50))
def test_printable_is_cut_to_its_limit(text: str, limit: int) -> None:
    assert len(printable(text, limit)) <= limit


def test_odd_values_become_text() -> None:
    event = escape_values(None, "info", {"event": "e", "at": {1: {"x\n": object}}, "n": None, "b": True})
    assert event["at"]["1"]["x\\n"].startswith("<class")
    assert event["n"] is None
    assert event["b"] is True
