"""What `harmony doctor` finds wrong without a cluster to look at: each with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.doctor import _disk, examine
from infra.doctor_state import _lag
from infra.finding import Finding
from infra.loopback_port import free_port
from infra.settings import load_settings


@pytest.mark.parametrize(
    ("found", "says", "remedy"),
    [
        (_disk("state disk", Path("/"), 1 << 60), "GB free", "free at least"),
        (_lag([("a", 0, 9), ("b", 3, 10_001)], any_offsets=True), "10001 records in b/3", "more workers"),
    ],
)
def test_what_is_wrong_has_a_remedy(found: Finding, says: str, remedy: str) -> None:
    assert found.status == "fail"
    assert says in found.detail
    assert remedy in found.remedy


def test_a_broker_that_does_not_answer_is_the_last_thing_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text("web_port: 0\n", encoding="utf-8")
    *_, last = examine(load_settings(config, environ={}), f"127.0.0.1:{free_port()}")
    assert (last.check, last.status) == ("brokers", "fail")
    assert last.remedy


def test_little_lag_and_none_yet_are_no_failure() -> None:
    assert _lag([("a", 0, 10_000)], any_offsets=True).status == "ok"
    assert _lag([("a", 0, 10_001)], any_offsets=False).status == "note"
