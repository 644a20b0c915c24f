"""`harmony plugins --check`: an installed plug-in held against the laws of docs/plugins.md, on made-up input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from agents.forecast.workloads import NO_INPUTS
from agents.planning.rows import PolicyQuestion
from agents.policy import WorkloadSpec
from agents.records import LevelRisk, WorkloadPlan
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin
from model.contract import COARSE_ROWS, ContextBatch, take_rows
from streams.catalogue import DEFAULT_CATALOGUE
from streams.records.facts import FleetFacts

_ROWS, _STEPS, _HORIZON, _PATHS = 7, 128, 8, 64
_ORIGIN_MS, _STEP_MS = 1_763_636_400_000, 15_000
_GARBAGE = (b"", b"{", b"\xff\xfe\x00", b"null", b"[[]]", b'{"a": 1}')


class PluginFinding(NamedTuple):
    """Whether one law holds; `detail` says how it was broken."""

    law: str
    ok: bool
    detail: str


def examine(plugin: Plugin, options: Mapping[str, Any]) -> list[PluginFinding]:
    """Every law of its kind; the first finding is whether it can be made at all, and the others need that.

    Raises:
        HarmonyError: it cannot be made.
    """
    own = plugin.make(options)
    laws = {"forecaster": _forecaster, "policy": _policy, "actuator": _actuator, "decoder": _decoder}[plugin.kind]
    return [PluginFinding("it can be made", ok=True, detail=""), *(_check_law(law, test) for law, test in laws(own))]


def _check_law(law: str, test: Callable[[], str | None]) -> PluginFinding:
    try:
        broken = test()
    except Exception as error:  # noqa: BLE001 - what a plug-in raises is a finding
        return PluginFinding(law, ok=False, detail=f"{type(error).__name__}: {error}")
    return PluginFinding(law, broken is None, broken or "")


Laws = Iterator[tuple[str, Callable[[], str | None]]]


def _forecaster(own: Any) -> Laws:
    batch = _batch()

    def paths(rows: ContextBatch) -> torch.Tensor:
        with torch.inference_mode():
            return torch.as_tensor(own.forecast(rows, _HORIZON, _PATHS).paths)

    def shape() -> str | None:
        expected = (_ROWS, _PATHS, _HORIZON, len(batch.indicators))
        actual = tuple(paths(batch).shape)
        return None if actual == expected else f"{actual} where {expected} is asked for"

    def split() -> str | None:
        batch_paths = paths(batch)
        for at in range(_ROWS):
            if not torch.equal(paths(take_rows(batch, [at]))[0], batch_paths[at]):
                return f"row {at} alone has other numbers than in a batch of {_ROWS}"
        return None

    def fast() -> str | None:
        paths(batch)
        began = perf_counter()
        paths(batch)
        took_s, limit_s = perf_counter() - began, PluginLimits().time_limit_s
        return None if took_s < limit_s else f"{took_s:.2f} s for {_ROWS} workloads; the default limit is {limit_s:g} s"

    def limits() -> str | None:
        fits = own.max_horizon >= _HORIZON and 1 <= own.min_context <= _STEPS
        return None if fits else f"max_horizon {own.max_horizon}, min_context {own.min_context}"

    yield "max_horizon is at least 8, min_context 1 to 128", limits
    yield "fingerprint is a text", lambda: None if isinstance(own.fingerprint, str) else repr(own.fingerprint)
    yield "paths are [B, S, H, N]", shape
    yield "paths are finite", lambda: None if bool(paths(batch).isfinite().all()) else "some are not"
    yield (
        "asked again, it answers the same bits",
        lambda: (
            None
            if torch.equal(paths(batch), paths(batch))
            else "draw by workload and origin, from a generator of your own"
        ),
    )
    yield "a row has the same bits in any batch", split
    yield "it answers within the time limit", fast


def _policy(own: Any) -> Laws:
    questions = _questions()

    def counts() -> str | None:
        answers = list(own.propose(questions))
        if len(answers) != len(questions):
            return f"{len(answers)} answers to {len(questions)} questions"
        wrong = [a for a in answers if a is not None and (isinstance(a, bool) or not isinstance(a, int) or a < 0)]
        return f"{wrong[0]!r} is no count" if wrong else None

    def alone() -> str | None:
        answers = list(own.propose(questions))
        for question, answer in zip(questions, answers, strict=True):
            if list(own.propose([question])) != [answer]:
                return f"{question.workload} alone is answered otherwise than among others"
        return None

    yield "a count, or None, per question", counts
    yield (
        "asked again, it answers the same",
        lambda: None if list(own.propose(questions)) == list(own.propose(questions)) else "it does not",
    )
    yield "an answer does not depend on the other questions", alone


def _actuator(own: Any) -> Laws:
    def has(method: str) -> str | None:
        return None if inspect.iscoroutinefunction(getattr(own, method, None)) else "there is none"

    yield "`async def observe`", lambda: has("observe")
    yield "`async def apply`", lambda: has("apply")
    yield (
        "done is applied or accepted",
        lambda: None if getattr(own, "done", "applied") in ("applied", "accepted") else repr(own.done),
    )


def _decoder(own: Any) -> Laws:
    def refuses() -> str | None:
        for value in _GARBAGE:
            try:
                list(own.decode(value, _ORIGIN_MS))
            except ValueError:
                continue
            except Exception as error:  # noqa: BLE001 - any other than ValueError is what is looked for
                return f"{value!r} raises {type(error).__name__}, not ValueError: {error}"
        return None

    yield "bad bytes raise ValueError, or give no points", refuses


def _batch() -> ContextBatch:
    rng = np.random.default_rng(0)
    n = len(DEFAULT_CATALOGUE)
    demand = sum(i.level == 1 for i in DEFAULT_CATALOGUE)
    values = torch.from_numpy(rng.gamma(4.0, 2.0, (_ROWS, _STEPS, n)).astype(np.float32))
    observed = torch.from_numpy(rng.random((_ROWS, _STEPS, n)) > 0.03)
    coarse = torch.from_numpy(rng.gamma(4.0, 2.0, (_ROWS, COARSE_ROWS, demand)).astype(np.float32))
    return ContextBatch(
        item_ids=tuple(f"check/w{k}" for k in range(_ROWS)),
        origin_ts_ms=torch.full((_ROWS,), _ORIGIN_MS),
        step_ms=_STEP_MS,
        values=torch.where(observed, values, 0.0),
        observed=observed,
        coarse=coarse,
        coarse_observed=torch.ones_like(coarse, dtype=torch.bool),
        levels=torch.tensor([i.level for i in DEFAULT_CATALOGUE]),
        indicators=tuple(i.name for i in DEFAULT_CATALOGUE),
        lower=torch.zeros(n),
        upper=torch.full((n,), torch.inf),
    )


def _questions() -> list[PolicyQuestion]:
    facts = msgspec.structs.replace(
        NO_INPUTS, arrival_rate=20.0, observed_ratio=1.0, observed_steps=128, oldest_age_ms=0
    )
    plan = WorkloadPlan(
        "check/w0",
        None,
        facts,
        fleet=FleetFacts(_ORIGIN_MS, 4, 4, 0, 0),
        reactive_replicas=3,
        proposed=4,
        proposer="cheapest",
        risks=(LevelRisk(3, 0.03, 0.001, 0.05), LevelRisk(4, 0.004, 0.001, 0.07)),
        epsilon=0.01,
    )
    paths = np.random.default_rng(1).gamma(9.0, 2.0, (3, _PATHS, _HORIZON)).astype(np.float32)
    paths.flags.writeable = False
    first = PolicyQuestion("check/w0", _ORIGIN_MS, _STEP_MS, WorkloadSpec("check/w0"), plan, paths[0], 4)
    others = (
        replace(first, workload=f"check/w{k}", spec=WorkloadSpec(f"check/w{k}"), demand_paths=paths[k]) for k in (1, 2)
    )
    return [first, *others]
