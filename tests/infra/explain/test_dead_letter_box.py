"""Dead letters as an operator meets them: listed, chosen, and sent again."""

from __future__ import annotations

from infra.explain.dead_letters import UNUSED, chosen, letters_table, notices, read_letter, refusals, replay
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


def notice(detail: str, stamp_ms: int, workload: bytes = b"w") -> TailRecord:
    headers = (("reason", UNUSED.encode()), ("detail", detail.encode()), ("topic", b"t.telemetry.gpu"))
    return TailRecord(0, 0, stamp_ms, workload, None, headers)


def test_notices_are_no_refused_records() -> None:
    found = [read_letter(notice("gpu: g0 sends none", 5)), read_letter(dead_letter(b"{}"))]
    assert chosen(found, None, None) == found[1:]
    assert chosen(found, UNUSED, None) == found[:1]
    assert refusals(found[:1]) == ""
    assert replay(found[:1], ("t.telemetry.gpu",), "nobody.invalid:9") == 0
    assert refusals([*found, *found]) == "2 (schema 2), the newest at t.telemetry.gpu/2@41: schema, v is missing"


def test_of_notices_the_newest_of_a_workload_and_kind_counts_for_ten_minutes() -> None:
    told = [("gpu: old", 1), ("gpu: new", 3), ("requests: other", 2)]
    letters = [read_letter(notice(detail, stamp_ms)) for detail, stamp_ms in told]
    letters.append(read_letter(notice("gpu: theirs\x1b", 4, b"v")))
    assert [n.sentence() for n in notices(letters, 600_001)] == [
        "v: gpu: theirs\\x1b",
        "w: gpu: new",
        "w: requests: other",
    ]
    assert [n.sentence() for n in notices(letters, 600_003)] == ["v: gpu: theirs\\x1b", "w: gpu: new"]
    assert notices(letters, 600_005) == []


def test_a_narrow_terminal_shows_where_and_why_a_record_was_refused() -> None:
    letter = read_letter(dead_letter(b'{"v":1,"kind":"requests","workload":"prod/chat","source":"pod-1"}' * 4))
    shown = text_of(letters_table([letter]), width=80)
    assert all(part in shown for part in ("t.telemetry.gpu/2@41", "schema", "v is missing"))
    wide = text_of(letters_table([letter]), width=200)
    assert all(part in wide for part in ("1:7", "t.telemetry.gpu/2@41", "schema", "v is missing", '{"v":1,"kind"'))
