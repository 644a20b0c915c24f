"""What `harmony doctor` finds wrong without a cluster to look at: each with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.console.host import free_port
from infra.kafka.tail import TailRecord
from infra.operate.doctor import Finding, _disk, _lag, _retention, examine
from infra.settings.load import load_settings
from streams.pages.codec import KEY


@pytest.mark.parametrize(
    ("found", "says", "remedy"),
    [
        (_disk("state disk", Path("/tmp"), 1 << 60, "HARMONY_STATE_DIR"), "GB free", "free at least"),
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


@pytest.mark.parametrize(
    ("text", "check", "remedy"),
    [
        ("advanced: {plugins: {policy: absent}}", "plug-ins", "No policy 'absent' is installed"),
        ("web_host: 0.0.0.0", "web access", "would be open to the network"),
        ("advanced: {worker: {web_certfile: /nowhere.pem}}", "web access", "Cannot use /nowhere.pem"),
    ],
)
def test_what_keeps_a_worker_from_starting_is_found(tmp_path: Path, text: str, check: str, remedy: str) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text(f"{text}\n", encoding="utf-8")
    failed = {f.check: f.remedy for f in examine(load_settings(config, environ={}), None) if f.status == "fail"}
    assert remedy in failed[check]


def test_starts_that_take_longer_than_forecasts_reach_are_noticed(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    workloads = ", ".join(f"{{id: w{k}, lead_time_s: {300 + 100 * k}}}" for k in range(6))
    config.write_text(f"step_s: 5\nworkloads: [{workloads}]\n", encoding="utf-8")
    found = next(f for f in examine(load_settings(config, environ={}), None) if f.check == "sight")
    assert found.status == "note"
    assert "64 steps of 5 s reach 320 s" in found.detail
    assert "w5 (800 s), w4 (700 s), w3 (600 s) and 2 more" in found.detail
    assert found.remedy == "set advanced.planning.max_horizon to 160 or more"
    config.write_text(f"{config.read_text()}advanced: {{planning: {{max_horizon: 160}}}}\n", encoding="utf-8")
    enough = next(f for f in examine(load_settings(config, environ={}), None) if f.check == "sight")
    assert (enough.status, enough.remedy) == ("ok", "")


def test_steps_that_are_long_beside_starts_are_noticed(tmp_path: Path) -> None:
    def found(text: str) -> Finding:
        config = tmp_path / "harmony.yaml"
        config.write_text(text, encoding="utf-8")
        return next(f for f in examine(load_settings(config, environ={}), None) if f.check == "step")

    workloads = "workloads: [{id: a, lead_time_s: 59}, {id: b, lead_time_s: 30}, {id: c, lead_time_s: 60}]\n"
    note = found(f"step_s: 15\n{workloads}")
    assert (note.status, note.detail) == (
        "note",
        "of 15 s is long beside starts of b (30 s), a (59 s): jumps of their load are seen late",
    )
    assert note.remedy == "set step_s to 5 or less, if sources report as often"
    assert found(f"step_s: 5\n{workloads}").status == "ok"
    assert found("step_s: 15\n").status == "ok"
    assert "set step_s to 0.5 or less" in found("step_s: 1\nworkloads: [{id: a, lead_time_s: 3}]\n").remedy


def test_workloads_whose_capacity_nobody_declares_are_noticed(tmp_path: Path) -> None:
    def found(text: str) -> Finding:
        config = tmp_path / "harmony.yaml"
        config.write_text(text, encoding="utf-8")
        return next(f for f in examine(load_settings(config, environ={}), None) if f.check == "capacity")

    assert found("step_s: 15\n").status == "ok"
    told = "{id: a, capacity_rps: 2}, {id: p, role: prefill, capacity_tokens_per_s: 900}"
    assert found(f"workloads: [{told}]\n").detail == "declared of all 2 workloads"
    silent = ", ".join(f"{{id: w{k}}}" for k in range(5))
    note = found(f"workloads: [{told}, {silent}]\n")
    assert (note.status, note.detail) == ("note", "not declared, held until learned under load: w0, w1, w2 and 2 more")
    assert note.remedy.startswith("harmony capacity finds one")


def test_little_lag_and_none_yet_are_no_failure() -> None:
    assert _lag([("a", 0, 10_000)], any_offsets=True).status == "ok"
    assert _lag([("a", 0, 10_001)], any_offsets=False).status == "note"


def test_pages_that_retention_will_not_hold_are_noticed_before_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "harmony.yaml"
    config.write_text("advanced: {kafka: {pages_retention_bytes: 1048576}}\n", encoding="utf-8")
    settings = load_settings(config, environ={})
    # Two chunks of a slot of partition 1: together what 2 L of them make more than a MiB.
    halves = [TailRecord(1, k, 0, KEY.pack(0, 1, 7, k), bytes(2_049), ()) for k in range(2)]
    assert _retention(settings, halves[:1], []).status == "ok"
    found = _retention(settings, halves, [TailRecord(1, 0, 0, b"7", bytes(9), ())])
    assert (found.status, found.detail) == ("note", "harmony.pages/1 should keep 2 MiB and keeps 1")
    assert "pages_retention_bytes" in found.remedy
    for foreign in (TailRecord(0, 0, 0, None, b"", ()), TailRecord(0, 0, 0, b"me", b"", ())):
        assert _retention(settings, [foreign], []).status == _retention(settings, [], [foreign]).status == "fail"
