"""The operating commands' pure parts: finding, explaining, ordering; and that mistakes get one clear sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from agents.decide.guards import chain as guards
from agents.decide.kernel import DecideKernel
from agents.decide.records import decode_decision, encode_command, encode_decision
from agents.records import Command, Decision
from infra.console.errors import HarmonyError
from infra.explain.views import GUARD_MEANINGS, decision_line, explanation, newest_commands, status_rows, status_table
from infra.kafka.tail import TailRecord
from infra.operate import cli as cli_operate
from infra.operate import commands as operate
from infra.operate import options as operate_place
from streams.log import Emission
from streams.records.facts import Control
from tests.agents.planning.plan_samples import STREAM, TOPICS, inputs, log, plan, policy, record, spec
from tests.infra.shown import text_of


def emissions() -> list[Emission]:
    kernel = DecideKernel(policy(spec("a"), spec("b", mode="observe")), STREAM, TOPICS)
    cliff = inputs(cliff=True)
    return [
        kernel.fold(r)
        for r in log(
            record(0, plan("a", 5, 7), plan("b", 5, 7)),
            record(1, plan("a", 7, 3, inputs=cliff), plan("b", 5, 9)),
        )
    ]


def tail(*values: bytes | None) -> list[TailRecord]:
    return [TailRecord(0, i, i, b"k", value, ()) for i, value in enumerate(values)]


def records_of(topic: str) -> list[TailRecord]:
    return tail(*(r.value for e in emissions() for g in e.outputs for r in g if r.topic == topic))


def decided() -> list[Decision]:
    return operate.decisions_of(records_of(TOPICS.decisions))


def test_foreign_records_on_the_public_topics_are_passed_over() -> None:
    foreign = tail(None, b"", b"{}", b"\xff\xfe", b"[1,2]", b'{"v":1}')
    assert operate.decisions_of(foreign) == []
    assert operate.commands_of(foreign) == []


def test_a_decision_is_found_by_id_prefix_or_by_workload() -> None:
    stretches = [records_of(TOPICS.decisions)]
    for d in decided():
        assert operate.find_decision(stretches, d.decision_id[:12]) == d
        assert operate.find_decision(stretches, d.decision_id.upper()) == d
    assert operate.find_decision(stretches, "a").origin_ts_ms == 10_000


def test_the_search_goes_back_until_found_and_no_further() -> None:
    read = []

    def stretches() -> Any:
        for part in (tail(b"{}"), records_of(TOPICS.decisions), tail(b"never")):
            read.append(part)
            yield part

    operate.find_decision(stretches(), decided()[0].decision_id)
    assert len(read) == 2


def test_an_ambiguous_or_unknown_id_is_said_plainly() -> None:
    one, two = decided()[:2]
    twins = [msgspec.structs.replace(d, decision_id="abcdef" + d.decision_id[6:]) for d in (one, two)]
    with pytest.raises(HarmonyError, match="Give more digits"):
        operate.find_decision([tail(*map(encode_decision, twins))], "abcdef")
    for unknown in ("abcdef", "abc", "no such\x1b[2J"):
        with pytest.raises(HarmonyError, match="No decision and no workload is called") as raised:
            operate.find_decision([records_of(TOPICS.decisions)], unknown)
        assert "\x1b" not in raised.value.message


def test_status_shows_the_newest_decision_and_whether_its_lease_holds() -> None:
    commands = newest_commands(operate.commands_of(records_of(TOPICS.commands)))
    newest = {d.workload: d for d in decided()}
    a, b = status_rows(newest, commands)
    assert (a["workload"], a["action"], a["reason"], a["replicas"]["final"]) == ("a", "hold", "cliff", 7)
    assert a["command"]["in_force"] is True
    assert (b["mode"], b["action"], b["command"]) == ("observe", "up", None)
    late = {**newest, "b": msgspec.structs.replace(newest["b"], origin_ts_ms=10**9)}
    assert status_rows(late, commands)[0]["command"]["in_force"] is False
    shown = text_of(status_table([a, b]))
    assert "5 → 9" in shown
    assert "cliff" in shown
    assert "decided for 1970-01-01 00:00:" in shown


def test_the_newest_command_is_by_epoch_then_sequence() -> None:
    (first, *_), raised = operate.commands_of(records_of(TOPICS.commands)), []
    for epoch, sequence in ((2, 1), (1, 900), (2, 3), (2, 2)):
        raised.append(msgspec.structs.replace(first, epoch=epoch, sequence=sequence))
    newest: Command = newest_commands(operate.commands_of(tail(*map(encode_command, raised))))["a"]
    assert (newest.epoch, newest.sequence) == (2, 3)


class Fleet:
    """Stands for `Place`: what was decided, and nothing that could be reached."""

    topics, security, brokers, declared = TOPICS, dict[str, Any](), "127.0.0.1:1", frozenset({"prod/chat"})
    bounds = MappingProxyType({"prod/chat": (2, 16)})

    def __init__(self, brokers: str | None = None, config: Any = None) -> None: ...

    @contextmanager
    def tail(self, topic: str) -> Iterator[Any]:
        yield SimpleNamespace(back=lambda *_: iter([records_of(topic)]))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pause", "prod/caht"], 0, "Nobody knows a workload 'prod/caht' yet; did you mean `prod/chat`."),
        (["pin", "c", "3"], 0, "Nobody knows a workload 'c' yet; known here: a, b, prod/chat."),
        (["mode", "c", "observe"], 0, "Nobody knows a workload 'c' yet"),
        (["mode", "c", "act"], 2, "nothing was ordered"),
        (["mode", "a", "act"], 0, "set to act"),
        (["pin", "prod/chat", "3"], 0, "pinned at 3 for 1h ("),
        (["pin", "prod/chat", "20"], 0, "above the declared maximum of 16: a pin wins over bounds"),
        (["pin", "prod/chat", "0"], 0, "below the declared minimum of 2: a pin wins over bounds"),
        (["pause"], 0, "the fleet: paused"),
    ],
)
def test_an_order_for_a_workload_that_nobody_knows_says_so(
    arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[Control] = []

    def publish(control: Control, *_: Any) -> tuple[int, ...]:
        ordered.append(control)
        return (0,)

    monkeypatch.setattr(cli_operate, "Place", Fleet)
    monkeypatch.setattr(operate, "Place", Fleet)
    monkeypatch.setattr(operate, "publish", publish)
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert len(ordered) == (code == 0)
    assert all(control.ts_ms == max(d.origin_ts_ms for d in decided()) for control in ordered)
    assert ("Nobody knows" in result.stderr) == (arguments[1:2] not in ([], ["a"], ["prod/chat"]))


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ("prod/caht", "Nobody knows a workload 'prod/caht' yet; did you mean `prod/chat`.\n"),
        ("prod/chat", "No decision for prod/chat yet.\n"),
        ("a", ""),
    ],
)
def test_decisions_of_a_workload_without_any_are_not_silence(
    workload: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_operate, "Place", Fleet)
    result = CliRunner().invoke(app(), ["decisions", "--workload", workload])
    assert (result.exit_code, result.stderr, bool(result.stdout)) == (0, says, says == "")


def test_decisions_are_read_back_until_enough_is_known() -> None:
    read = []

    def stretches() -> Iterator[list[TailRecord]]:
        for n, stretch in enumerate((tail(b"{}"), records_of(TOPICS.decisions), records_of(TOPICS.decisions), [])):
            read.append(n)
            yield stretch

    assert operate.newest_decisions(stretches()).keys() == {"a", "b"}
    assert read == [0, 1, 2]
    read.clear()
    assert operate.newest_decisions(stretches(), lambda newest: "a" in newest).keys() == {"a", "b"}
    assert read == [0, 1]
    assert operate.newest_decisions([]) == {}


def test_a_workload_that_was_retired_is_not_known_any_more() -> None:
    gone = {d.workload: msgspec.structs.replace(d, action="retired") for d in decided()}
    assert operate.stranger("a", (), gone) == "Nobody knows a workload 'a' yet."
    assert operate.stranger("a", ("a",), gone) is None


def test_an_empty_fleet_has_a_status_too() -> None:
    assert "no decision yet" in text_of(status_table(status_rows({}, {})))


def test_an_explanation_says_what_why_and_each_guards_word() -> None:
    by_place = {(d.workload, d.origin_ts_ms): d for d in decided()}
    held, would = text_of(explanation(by_place["a", 10_000])), text_of(explanation(by_place["b", 5_000]))
    assert "a stays at 7 replicas (a sudden fall is not believed)" in held
    assert "3 → 7" in held
    assert "fell by more than 50% in one step" in held
    assert "b would grow from 5 to 7 replicas" in would
    assert "no command was published" in would


def test_every_guard_has_plain_words() -> None:
    names = {g.__name__ for g in (*guards.GATES, *guards.GUARDS)} - {"refused", "sanity"}
    assert names <= set(GUARD_MEANINGS)


def test_text_from_outside_cannot_move_the_terminal() -> None:
    bad = msgspec.structs.replace(decided()[0], workload="a\x1b[2J\nb", reason="x\x07")
    for shown in (decision_line(bad), text_of(explanation(bad))):
        assert "\x1b" not in shown
        assert "\x07" not in shown


def app() -> typer.Typer:
    application = typer.Typer()
    cli_operate.register(application)
    return application


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pin", "w", "3", "--for", "soon"], 2, "write 90s"),
        (["pin", "w", "-3"], 2, ""),
        (["pin", "w", "100001"], 2, "more than the 100000 replicas"),
        (["mode", "w", "yolo"], 2, "act or observe"),
        (
            ["dlq", "list", "--reason", "shema", "--brokers", "127.0.0.1:1"],
            2,
            "nothing is refused as 'shema'; did you mean `schema`.",
        ),
        (
            ["dlq", "replay", "--reason", "17", "--brokers", "127.0.0.1:1"],
            2,
            "nothing is refused as '17'; known here: control, decode, future",
        ),
        (["status", "--brokers", "127.0.0.1:1"], 1, "No Kafka broker answers at 127.0.0.1:1"),
        (["explain", "a", "--brokers", "127.0.0.1:1"], 1, "No Kafka broker"),
        (["dlq", "list", "--brokers", "127.0.0.1:1"], 1, "No Kafka broker"),
        (["pause", "--brokers", "127.0.0.1:1"], 1, "No Kafka broker"),
    ],
)
def test_a_mistake_or_a_dead_broker_gets_one_sentence(
    arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        topics, security, brokers, bounds = TOPICS, dict[str, Any](), "127.0.0.1:1", dict[str, Any]()
        tail = operate_place.Place.tail

        def __init__(self, brokers: str | None, config: Any) -> None: ...

    monkeypatch.setattr(operate, "Place", Here)
    monkeypatch.setattr("infra.operate.commands.Place", Here)
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_every_command_is_there_and_explains_itself() -> None:
    shown = CliRunner().invoke(app(), ["--help"]).stdout
    for command in ("status", "explain", "decisions", "pin", "unpin", "mode", "pause", "resume", "dlq"):
        assert command in shown
        assert CliRunner().invoke(app(), [command, "--help"]).exit_code == 0


def test_the_samples_are_real_decisions() -> None:
    assert len(decided()) == 4
    assert all(decode_decision(encode_decision(d)) == d for d in decided())


def test_changes_are_decisions_that_differ_from_the_one_before() -> None:
    passes = operate.ChangeFilter()
    a, b = decided()[0], msgspec.structs.replace(decided()[0], workload="other")
    grown = msgspec.structs.replace(a, replicas=msgspec.structs.replace(a.replicas, final=(a.replicas.final or 0) + 1))
    observed = msgspec.structs.replace(grown, mode="observe" if grown.mode == "act" else "act")
    renamed = msgspec.structs.replace(observed, reason="tolerance", decision_id="f" * 24)
    retired = msgspec.structs.replace(observed, action="retired")
    sequence = [a, a, b, grown, a, grown, observed, renamed, retired]
    assert [passes(d) for d in sequence] == [True, False, True, True, True, True, True, False, True]


def test_decisions_show_only_changes_where_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = decided()[0]
    counts = [3, 3, 4, 4, 4, 5]
    made = [
        msgspec.structs.replace(
            base, origin_ts_ms=1000 * k, replicas=msgspec.structs.replace(base.replicas, final=count, current=count)
        )
        for k, count in enumerate(counts)
    ]
    old, new = tail(*map(encode_decision, made[:4])), tail(*map(encode_decision, made[4:]))

    class Following(Fleet):
        @contextmanager
        def tail(self, topic: str) -> Iterator[Any]:
            yield SimpleNamespace(back=lambda *_: iter([old]), follow=lambda: iter(new))

    operate.show_decisions(Following(), follow=True, workload=None, limit=20, as_json=True, changes=True)
    shown = [json.loads(line)["origin_ts_ms"] for line in capsys.readouterr().out.splitlines()]
    assert shown == [0, 2000, 5000]
