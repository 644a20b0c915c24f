"""Bytes that nest thousands of times are refused in words by whoever reads what others may write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_command, decode_decision
from agents.forecast.commit import decode_commit
from infra.actuate.store import OverridesFile
from streams.log import ContractBroken, LogRecord
from streams.runtime.commits import Commit, CommitAssembler
from tests.agents.planning.plan_samples import STREAM, TOPICS, policy

DEEP = 200_000
JSON = b'{"workload":' + b"[" * DEEP + b"]" * DEEP + b"}"
UNKNOWN = msgspec.msgpack.encode("unknown")
PACKED = b"\x81" + UNKNOWN + b"\x91" * DEEP + b"\xc0"
CHUNK = b"\x9a\x01" + UNKNOWN + b"\x00\x00\x00\x01" + UNKNOWN + b"\xc0" + UNKNOWN + b"\x91" * DEEP + b"\xc0"


@pytest.mark.parametrize("decode", [decode_decision, decode_command])
def test_decisions_and_commands(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(JSON)
    with pytest.raises(msgspec.MsgspecError, match="nested too deep"):
        decode(JSON.replace(b"workload", b"unknown"))


@pytest.mark.parametrize("value", [JSON, JSON.replace(b"workload", b"unknown"), b'{"workload":"\xff"}'])
def test_a_stranger_on_the_decisions_topic_stops_no_restart(value: bytes) -> None:
    restored = DecideKernel.restore(policy(), STREAM, TOPICS, commit=None, published=[value])
    assert restored.resume_offset is None


def test_commit_records() -> None:
    with pytest.raises(ContractBroken, match="is not a commit record"):
        CommitAssembler("forecast", 0).feed(LogRecord(7, 0, b"forecast/0", CHUNK))
    with pytest.raises(ContractBroken, match="not a commit of the forecast stage"):
        decode_commit(PACKED, STREAM, 0, "test")
    sealed = Commit("decide", 0, 1, "digest", None, PACKED, 0)
    with pytest.raises(ContractBroken, match="cannot be read"):
        DecideKernel.restore(policy(), STREAM, TOPICS, commit=sealed)


def test_words_that_cannot_be_read_are_a_thrown_kill_switch(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    path.write_bytes(b'{"unknown":' + b"[" * DEEP + b"]" * DEEP + b"}")
    words = OverridesFile(path).read()
    assert words is not None
    assert words.stopped is not None
    assert "cannot be read" in words.stopped
