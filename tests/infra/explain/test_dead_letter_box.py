"""Dead letters as an operator meets them: listed, chosen, and sent again."""

from __future__ import annotations

from infra.explain.dead_letters import chosen, letters_table, read_letter, replay
from infra.kafka.tail import TailRecord
from streams.log import LogRecord
from streams.records.dead_letters import DeadLetterBox
from streams.records.schema import DeadLetter
from tests.infra.shown import text_of


def dead_letter(value: bytes, reason: str = "schema", topic: str = "t.telemetry.gpu") -> TailRecord:
    box = DeadLetterBox("t.dead-letters", topic, 2)
    box.add(LogRecord(41, 0, b"w", value), DeadLetter(reason, "v is missing"), published_before=False)
    (out,) = box.take()
    return TailRecord(1, 7, 99, out.key, out.value, out.headers)


def test_a_dead_letter_says_where_it_was_refused_and_keeps_its_bytes() -> None:
    letter = read_letter(dead_letter(b"\xff\x00"))
    assert (letter.topic, letter.partition, letter.offset, letter.reason) == ("t.telemetry.gpu", 2, 41, "schema")
    assert letter.to_dict()["value_base64"] == "/wA="
    assert read_letter(dead_letter(b"{}")).to_dict()["value"] == "{}"
    assert "t.telemetry.gpu/2@41" in text_of(letters_table([letter]))


def test_a_dead_letter_without_headers_is_still_listed() -> None:
    letter = read_letter(TailRecord(0, 0, 0, None, None, (("partition", b"x"),)))
    assert (letter.reason, letter.partition, letter.value) == ("unknown", None, None)
    assert "no dead letters" in text_of(letters_table([]))


def test_a_letter_that_was_cut_says_so_and_is_not_sent_again() -> None:
    headers = (("reason", b"oversize"), ("topic", b"t.telemetry.gpu"), ("cut", b"48000000"))
    letter = read_letter(TailRecord(0, 0, 0, b"w", b"{", headers))
    assert letter.to_dict()["cut_from"] == 48_000_000
    assert replay([letter], ("t.telemetry.gpu",), "nobody.invalid:9") == 0


def test_dead_letters_are_chosen_by_reason_and_topic() -> None:
    found = [
        read_letter(dead_letter(b"{}", r, t))
        for r, t in (("schema", "t.telemetry.gpu"), ("range", "t.telemetry.requests"))
    ]
    assert chosen(found, None, None) == found
    assert chosen(found, "range", None) == found[1:]
    assert chosen(found, None, "telemetry.gpu") == chosen(found, None, "t.telemetry.gpu") == found[:1]
    assert chosen(found, "range", "telemetry.gpu") == []
