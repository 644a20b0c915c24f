"""Headers of decision and command records as CloudEvents 1.0 in binary mode; the bodies stay as they were."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agents.decide.kernel import DecideKernel
from agents.decide.records import command_record, encode_command
from agents.records import Command, Target
from tests.agents.planning.plan_samples import STREAM, TOPICS, log, plan, policy, record, spec

COMMAND = Command(
    "c", "d", "prod/llm/chat", Target("apps/v1", "Deployment", "prod", "chat"), 5, 3, 1, 7, 1_763_636_415_123,
    1_763_636_475_123, "reactive", None, 0.01,
)  # fmt: skip


def headers_of(command: Command, fleet: str = "default") -> dict[str, str]:
    made = command_record("commands", fleet, command)
    assert made.value == encode_command(command), "headers only"
    assert len(dict(made.headers)) == len(made.headers), "no name twice"
    return {name: value.decode() for name, value in made.headers}


def test_a_command_is_a_cloudevent_of_the_kafka_binding() -> None:
    assert headers_of(COMMAND) == {
        "ce_specversion": "1.0",
        "ce_type": "harmony.command.v1",
        "ce_id": "c-1-7",
        "ce_source": "harmony/default",
        "ce_subject": "prod/llm/chat",
        "ce_time": "2025-11-20T11:00:15.123Z",
        "content-type": "application/json",
    }


@given(ts_ms=st.integers(0, 4_000_000_000_000), fleet=st.text(min_size=1, max_size=20), sequence=st.integers(0, 10**9))
def test_source_and_id_identify_an_event_and_its_time_is_exact(ts_ms: int, fleet: str, sequence: int) -> None:
    fleet = fleet.encode("utf-8", "replace").decode()
    headers = headers_of(msgspec.structs.replace(COMMAND, issued_ts_ms=ts_ms, sequence=sequence), fleet)
    assert re.fullmatch(r"[A-Za-z0-9/%._~-]+", headers["ce_source"]), "a URI reference"
    assert unquote(headers["ce_source"]) == f"harmony/{fleet}"
    assert headers["ce_id"] == f"c-1-{sequence}"
    told = datetime.fromisoformat(headers["ce_time"])
    assert (told - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == ts_ms


def test_every_record_of_the_decide_stage_has_them_and_a_replay_gives_the_same() -> None:
    def run() -> list[tuple[str, bytes | None, tuple[tuple[str, bytes], ...]]]:
        kernel = DecideKernel(policy(spec("a")), STREAM, TOPICS)
        emissions = [kernel.fold(r) for r in log(record(0, plan("a", 5, 7)), record(1, plan("a", 7, 7)))]
        return [(r.topic, r.key, r.headers) for e in emissions for group in e.outputs for r in group]

    records = run()
    assert {topic for topic, _, _ in records} == {TOPICS.decisions, TOPICS.commands}
    for topic, key, headers in records:
        named = dict(headers)
        assert named["ce_type"] == (b"harmony.decision.v1" if topic == TOPICS.decisions else b"harmony.command.v1")
        assert named["ce_subject"] == key == b"a"
    assert len({(h["ce_source"], h["ce_id"], h["ce_type"]) for h in (dict(r[2]) for r in records)}) == len(records)
    assert run() == records
