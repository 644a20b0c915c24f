"""The decide stage over a log of plans, and what it publishes, decoded."""

from __future__ import annotations

from typing import Any

from agents.decide.kernel import STAGE, DecideKernel
from agents.decide.records import decode_command, decode_decision
from agents.policy import Policy
from agents.records import Command, Decision
from streams.log import Emission, LogRecord
from streams.records.facts import Control
from streams.runtime.commits import Commit, CommitAssembler
from tests.agents.planning.plan_samples import STREAM, TOPICS, policy


def kernel(p: Policy | None = None, **options: Any) -> DecideKernel:
    return DecideKernel(p or policy(), STREAM, TOPICS, **options)


def published(emissions: list[Emission]) -> tuple[list[Decision], list[Command]]:
    rows = [r for e in emissions for group in e.outputs for r in group]
    decisions = [decode_decision(r.value or b"") for r in rows if r.topic == TOPICS.decisions]
    return decisions, [decode_command(r.value or b"") for r in rows if r.topic == TOPICS.commands]


def run(records: list[LogRecord], p: Policy | None = None, **options: Any) -> tuple[list[Decision], list[Command]]:
    k = kernel(p, **options)
    return published([k.fold(r) for r in records])


def newest_commit(emissions: list[Emission]) -> Commit | None:
    assembler = CommitAssembler(STAGE, 0)
    for offset, r in enumerate(r for e in emissions for r in e.commits):
        assembler.feed(LogRecord(offset, 0, r.key, r.value))
    return assembler.newest


def control(action: str, workload: str | None = "w", ident: str = "", **changes: Any) -> Control:
    return Control(ident or f"{action}-{workload}", 0, action, workload, by="op", **changes)
