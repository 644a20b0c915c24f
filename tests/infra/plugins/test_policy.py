"""A policy of one's own in the loop: it proposes, the guards decide, and without it the built-in plan stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.planning.codec import decode_plan
from agents.planning.rows import PolicyQuestion
from agents.records import Decision
from infra.operate.plugins import examine
from infra.settings.limits import PluginLimits
from infra.settings.load import Settings
from infra.settings.plugins import find
from infra.worker.plugins import PluginProposer
from tests.infra.observability.memory_loop import MemoryLoop
from tests.infra.plugins.example import write_metadata

LIMITS = PluginLimits(60.0, 100, 1)
MAX = 9  # of the loop's workloads


@dataclass
class Own:
    answer: Callable[[Sequence[PolicyQuestion]], Any]

    def propose(self, questions: Sequence[PolicyQuestion]) -> Any:
        return self.answer(questions)


@dataclass(frozen=True)
class _Made:
    """Stands for `Plugin`."""

    own: object
    kind: str = "policy"
    name: str = "mine"

    def make(self, options: Mapping[str, Any]) -> object:
        return self.own


def decided(answer: Callable[[Sequence[PolicyQuestion]], Any] | None, slots: int = 4) -> tuple[list[Any], MemoryLoop]:
    loop = MemoryLoop(("a", "b"))
    if answer is not None:
        engine: Any = loop.forecast._engine
        engine._proposer = PluginProposer(_Made(Own(answer)), {}, LIMITS)  # type: ignore[arg-type]

    async def scene() -> None:
        for _ in range(slots):
            await loop.publish_slot()

    asyncio.run(scene())
    return [msgspec.json.decode(r.value or b"", type=Decision) for r in loop.logs[loop.topics.decisions]], loop


def plans(loop: MemoryLoop) -> list[Any]:
    return [plan for r in loop.logs[loop.topics.plans] for plan in decode_plan(r.value, r.offset).workloads]


def test_its_count_is_the_proposal_and_its_name_the_proposer() -> None:
    decisions, loop = decided(lambda questions: [7 for _ in questions])
    planned = [d for d in decisions if d.proposer is not None]
    assert planned
    assert {(d.replicas.proposed, d.proposer) for d in planned} == {(7, "plugin:mine")}
    assert {(p.proposed, p.proposer) for p in plans(loop) if p.refused is None} == {(7, "plugin:mine")}


def test_the_guards_have_the_last_word() -> None:
    wild, _ = decided(lambda questions: [50_000 for _ in questions])
    assert all(d.replicas.final <= MAX for d in wild if d.replicas.final is not None)
    none, _ = decided(lambda questions: [0 for _ in questions])
    assert all(d.replicas.final >= 1 for d in none if d.replicas.final is not None)


@pytest.mark.parametrize(
    "answer",
    [
        lambda questions: [None for _ in questions],
        lambda _: 1 / 0,
        lambda _: [3],
        lambda questions: [-1 for _ in questions],
        lambda questions: [2.5 for _ in questions],
        lambda questions: [10**9 for _ in questions],
        lambda _: "ab",
        lambda _: None,
    ],
    ids=["none", "raises", "too few", "negative", "a fraction", "absurd", "letters", "nothing"],
)
def test_without_an_answer_the_built_in_plan_stands(answer: Callable[[Sequence[PolicyQuestion]], Any]) -> None:
    with_it, without = decided(answer)[0], decided(None)[0]
    assert with_it == without


def test_it_is_told_the_plan_the_declaration_and_demand_that_it_cannot_change() -> None:
    seen: list[PolicyQuestion] = []

    def look(questions: Sequence[PolicyQuestion]) -> list[None]:
        seen.extend(questions)
        for question in questions:
            with pytest.raises(ValueError, match="read-only"):
                question.demand_paths[:] = 0.0
        return [None for _ in questions]

    decided(look)
    last = seen[-1]
    assert {q.workload for q in seen} == {"a", "b"}
    assert last.spec.max_replicas == MAX
    assert last.plan.proposed is not None
    assert last.plan.risks
    assert last.demand_paths.shape[0] == 32
    # The loop's forecaster spreads the last rate evenly by 10 %.
    assert np.isclose(np.median(last.demand_paths), 10.0, rtol=0.02)


def test_the_example_rounds_up_to_pairs(example: Path) -> None:
    loop = MemoryLoop(("a", "b"))
    engine: Any = loop.forecast._engine
    engine._proposer = PluginProposer(find("policy", "even-numbers"), {}, LIMITS)

    async def scene() -> None:
        for rate in (4.0, 5.0, 6.0, 7.0, 8.0, 9.0):
            await loop.publish_slot(rate)

    asyncio.run(scene())
    own = [p for p in plans(loop) if p.proposer == "plugin:even-numbers"]
    assert own
    assert all(p.proposed % 2 == 0 for p in own)
    assert [f for f in examine(find("policy", "even-numbers"), {}) if not f.ok] == []


def test_name_version_and_options_enter_the_policys_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(version: str | None, **plugins: Any) -> str:
        site = tmp_path / str(version)
        if version and not site.exists():
            write_metadata(site, "p", version, {"harmony.policies": {"mine": "x:y", "other": "x:z"}})
        with monkeypatch.context() as patch:
            patch.syspath_prepend(site)
            return Settings(advanced={"plugins": plugins}).policy.fingerprint()  # type: ignore[arg-type]

    told = [
        fingerprint(None),
        fingerprint("1", policy="mine"),
        fingerprint("2", policy="mine"),
        fingerprint("1", policy="other"),
        fingerprint("1", policy="mine", options={"policy": {"k": 1}}),
    ]
    assert len(set(told)) == len(told)
    assert fingerprint("1", policy="mine") == told[1]
    assert fingerprint("1", policy="mine", time_limit_s=2.0, failures=9, pause_calls=1) == told[1]
