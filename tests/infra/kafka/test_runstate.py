"""Which brokers a command talks to, and what a run in progress tells it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.console.host import birth_mark, is_alive
from infra.kafka.discovery import FILE, RunState, find_fleet, read_run_state, resolve_brokers
from infra.settings.brokers import format_brokers, parse_brokers
from infra.worker.options import InstanceId


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HARMONY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def gone_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_flag_wins_over_environment_over_run_and_none_of_them_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HarmonyError, match=r"No brokers named.*harmony run") as stop:
        resolve_brokers(None)
    assert stop.value.exit_code == 2
    with RunState.written(brokers="127.0.0.1:1111", config="c.yaml", web="http://127.0.0.1:1"):
        assert resolve_brokers(None) == "127.0.0.1:1111"
        monkeypatch.setenv("HARMONY_BROKERS", "b:2222")
        assert resolve_brokers(None) == "b:2222"
        assert resolve_brokers("c") == "c:9092"
    monkeypatch.delenv("HARMONY_BROKERS")
    with pytest.raises(HarmonyError):
        resolve_brokers(None)


def test_announcement_is_read_back_and_withdrawn() -> None:
    with RunState.written(brokers="h:1", config="c", web="w") as state:
        assert read_run_state() == state
        assert state.pid == os.getpid()
    assert read_run_state() is None


def test_withdrawal_leaves_a_later_run_alone() -> None:
    with RunState.written(brokers="h:1", config="c", web="w"):
        later = RunState.written(brokers="h:2", config="c", web="w")
        later.__enter__()
    state = read_run_state()
    assert state is not None
    assert state.brokers == "h:2"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"brokers": "h:1"}',
        json.dumps({"brokers": "h:1", "pid": gone_pid(), "web": "", "config": "", "born": ""}),
        # The pid lives, but it is another process by now.
        json.dumps({"brokers": "h:1", "pid": os.getpid(), "web": "", "config": "", "born": "1"}),
    ],
    ids=["empty", "a list", "without a process", "a process that is gone", "another process of that number"],
)
def test_stale_or_broken_announcements_count_as_none(tmp_path: Path, body: str) -> None:
    path = tmp_path / "state/harmony" / FILE
    path.parent.mkdir(parents=True)
    path.write_text(body)
    assert read_run_state() is None


def test_settings_come_from_the_run_that_names_the_brokers(tmp_path: Path) -> None:
    demo, own = tmp_path / "demo.yaml", tmp_path / "harmony.yaml"
    demo.write_text("topic_prefix: demo.\n")
    own.write_text("topic_prefix: own.\n")
    with RunState.written(brokers="h:1", config=str(demo), web="w"):
        settings, brokers = find_fleet(None, None)
        assert (settings.topics.prefix, brokers) == ("demo.", "h:1")
        assert find_fleet(own, None)[0].topics.prefix == "own."
        assert find_fleet(None, "k:9")[0].topics.prefix == "own."
        own.write_text("topic_prefix: own.\nbrokers: k:7\n")
        settings, brokers = find_fleet(None, None)
        assert (settings.topics.prefix, brokers) == ("own.", "k:7")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("a", "a:9092"),
        (" a:1 , b ", "a:1,b:9092"),
        ("[::1]:5,10.0.0.1:6", "[::1]:5,10.0.0.1:6"),
        ("[::1]", "[::1]:9092"),
    ],
)
def test_broker_addresses_have_one_normal_form(text: str, normal: str) -> None:
    assert format_brokers(parse_brokers(text)) == normal
    assert format_brokers(parse_brokers(normal)) == normal


@pytest.mark.parametrize("text", ["", " , ", "h:", ":1", "h:x", "h:0", "h:65536", "h:-1", "http://h:1", "h:\uff11"])
def test_malformed_addresses_are_usage_errors(text: str) -> None:
    with pytest.raises(HarmonyError) as stop:
        parse_brokers(text)
    assert stop.value.exit_code == 2


def test_a_process_is_alive_until_it_is_gone() -> None:
    assert is_alive(os.getpid())
    assert not is_alive(gone_pid())
    assert not is_alive(0)
    assert not is_alive(1 << 80)
    assert birth_mark(os.getpid()) == birth_mark(os.getpid())


def test_instance_ids_differ_on_one_host_and_a_freed_one_is_taken_again(tmp_path: Path) -> None:
    with InstanceId(tmp_path) as first, InstanceId(tmp_path) as second:
        assert first.name.endswith("-0")
        assert second.name.endswith("-1")
        first.close()
        with InstanceId(tmp_path) as third:
            assert third.name == first.name
    with InstanceId(tmp_path, "pod-3"), pytest.raises(HarmonyError, match="'pod-3' already"):
        InstanceId(tmp_path, "pod-3")


def test_instance_id_without_a_writable_state_directory_is_the_host(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with InstanceId(tmp_path / "file") as only:
        assert only.name
        assert not only.name.endswith("-0")
