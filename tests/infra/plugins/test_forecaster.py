"""A forecaster of one's own in the loop: it is asked, held to the contract, and replaced where it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from agents.records import Decision, ForecastRecord
from infra.console.errors import HarmonyError
from infra.operate.plugins import examine
from infra.plugins.guarded import PluginFailed
from infra.settings.limits import PluginLimits
from infra.settings.load import Settings, require_chosen
from infra.settings.plugins import find
from infra.worker.plugins import PluginForecaster, with_own_forecaster
from model.baselines.pool import FallbackForecaster
from model.baselines.smoothing import SeasonalNaiveForecaster
from model.contract import ContextBatch, ForecastBatch
from streams.meter import NullMeter
from tests.infra.observability.memory_loop import MemoryLoop
from tests.infra.plugins.example import write_metadata
from tests.model.batches import random_batch

LIMITS = PluginLimits(60.0, 2, 2)
TENSORS = ("origin_ts_ms", "values", "observed", "coarse", "coarse_observed", "levels", "lower", "upper")


@dataclass
class Own:
    """A forecaster whose answer the test makes."""

    answer: Callable[[ContextBatch, int, int], Any]
    fingerprint: str = "own"
    max_horizon: int = 64
    min_context: int = 1

    def forecast(self, batch: ContextBatch, horizon: int, num_paths: int) -> Any:
        return self.answer(batch, horizon, num_paths)


@dataclass(frozen=True)
class _Made:
    """Stands for `Plugin`."""

    own: object
    kind: str = "forecaster"
    name: str = "mine"
    distribution: str = "p"
    version: str = "1"

    def make(self, options: Mapping[str, Any]) -> object:
        return self.own


def wrapped(answer: Callable[[ContextBatch, int, int], Any]) -> PluginForecaster:
    return PluginForecaster(_Made(Own(answer)), {}, LIMITS)  # type: ignore[arg-type]


def constant(value: float, **shape: int) -> Callable[[ContextBatch, int, int], ForecastBatch]:
    def answer(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        sizes = {"b": len(batch), "s": num_paths, "h": horizon, "n": len(batch.indicators)} | shape
        return ForecastBatch(torch.full(tuple(sizes.values()), value), ("x",) * len(batch), "x")

    return answer


def test_its_paths_stand_within_the_bounds_and_bear_its_name() -> None:
    batch = random_batch(3, seed=1)
    result = wrapped(constant(-5.0)).forecast(batch, 4, 9)
    assert (result.paths == 0.0).all()
    assert result.paths.dtype == torch.float32
    assert result.sources == ("plugin:mine",) * 3


@pytest.mark.parametrize("part", ["b", "s", "h", "n"])
def test_paths_of_another_shape_are_a_failure(part: str) -> None:
    with pytest.raises(PluginFailed, match="shape"):
        wrapped(constant(1.0, **{part: 1})).forecast(random_batch(3, seed=1), 4, 9)


def test_it_cannot_spoil_what_the_next_forecaster_is_asked_with() -> None:
    batch, same = random_batch(3, seed=1), random_batch(3, seed=1)

    def scribble(own: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        for name in TENSORS:
            getattr(own, name).zero_()
        return constant(1.0)(own, horizon, num_paths)

    assert (wrapped(scribble).forecast(batch, 4, 9).paths == 1.0).all()
    for name in TENSORS:
        assert torch.equal(getattr(batch, name), getattr(same, name)), name


def test_name_version_options_and_its_own_word_enter_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint(version: str, options: Mapping[str, Any], own: str) -> str:
        site = tmp_path / version
        if not site.exists():
            write_metadata(site, "p", version, {"harmony.forecasters": {"mine": "x:y"}})
        with monkeypatch.context() as patch:
            patch.syspath_prepend(site)
            plugin = _Made(Own(constant(1.0), fingerprint=own), version=version)
            return PluginForecaster(plugin, options, LIMITS).fingerprint  # type: ignore[arg-type]

    first = fingerprint("1", {}, "a")
    assert first == fingerprint("1", {}, "a")
    others = {fingerprint("2", {}, "a"), fingerprint("1", {"k": 1}, "a"), fingerprint("1", {}, "b")}
    assert len(others | {first}) == 4


def test_what_lacks_a_member_is_refused_before_anything_starts() -> None:
    for own in (object(), Own(constant(1.0), max_horizon=0)):
        with pytest.raises(HarmonyError, match=r"breaks the contract of docs/plugins\.md") as stop:
            PluginForecaster(_Made(own), {}, LIMITS)  # type: ignore[arg-type]
        assert stop.value.exit_code == 2


def settings_of(**plugins: Any) -> Settings:
    return Settings(advanced={"plugins": plugins})  # type: ignore[arg-type]


async def _decide(loop: MemoryLoop, slots: int) -> tuple[list[ForecastRecord], list[Decision]]:
    for _ in range(slots):
        await loop.publish_slot()
    forecasts = [msgspec.json.decode(r.value or b"", type=ForecastRecord) for r in loop.logs[loop.topics.forecasts]]
    decisions = [msgspec.json.decode(r.value or b"", type=Decision) for r in loop.logs[loop.topics.decisions]]
    return forecasts, decisions


def _hosted(forecaster: Any) -> MemoryLoop:
    loop = MemoryLoop(("a", "b"))
    engine: Any = loop.forecast._engine

    async def ask(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        return forecaster.forecast(batch, horizon, num_paths)  # type: ignore[no-any-return]

    engine._forecaster = forecaster
    engine._batcher._forecast = ask
    return loop


def test_the_example_forecasts_in_the_loop_and_its_version_is_in_every_decision(example: Path) -> None:
    own = with_own_forecaster(settings_of(forecaster="busiest-hour"), SeasonalNaiveForecaster(), NullMeter())
    forecasts, decisions = asyncio.run(_decide(_hosted(own), 20))
    assert {f.source for f in forecasts[-2:]} == {"plugin:busiest-hour"}
    assert {d.fingerprint.model for d in decisions} == {own.fingerprint}
    assert forecasts[0].source == "seasonal_naive"  # before it has the context that it asks for


def test_one_that_fails_is_replaced_by_the_built_in_ones_and_asked_again(example: Path) -> None:
    asked = threading.Event()
    plugin = _Made(Own(constant(1.0)))
    own = PluginForecaster(plugin, {}, LIMITS)  # type: ignore[arg-type]

    def broken(batch: ContextBatch, horizon: int, num_paths: int) -> ForecastBatch:
        asked.set()
        raise RuntimeError("no")

    chain = FallbackForecaster(own, SeasonalNaiveForecaster())
    batch = random_batch(2, seed=3)
    plugin.own.answer = broken  # type: ignore[attr-defined]
    for _ in range(2 + 2):
        assert chain.forecast(batch, 4, 9).sources == ("seasonal_naive",) * 2
    assert asked.is_set()
    plugin.own.answer = constant(2.0)  # type: ignore[attr-defined]
    assert chain.forecast(batch, 4, 9).sources == ("plugin:mine",) * 2


def test_the_example_keeps_the_law(example: Path) -> None:
    for options in ({}, {"headroom_ratio": 0.5}):
        assert [f for f in examine(find("forecaster", "busiest-hour"), options) if not f.ok] == []


def test_the_check_finds_what_depends_on_the_batch_and_on_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "careless.py").write_text(
        "import torch\n"
        "class Careless:\n"
        "    fingerprint, max_horizon, min_context = 'c', 64, 1\n"
        "    def __init__(self, options): pass\n"
        "    def forecast(self, batch, horizon, num_paths):\n"
        "        class Answer:\n"
        "            paths = torch.rand(len(batch.item_ids), num_paths, horizon, len(batch.indicators))\n"
        "        return Answer\n"
    )
    write_metadata(tmp_path, "careless", "1", {"harmony.forecasters": {"careless": "careless:Careless"}})
    monkeypatch.syspath_prepend(tmp_path)
    broken = {f.law for f in examine(find("forecaster", "careless"), {}) if not f.ok}
    assert broken == {"asked again, it answers the same bits", "a row has the same bits in any batch"}


def test_a_chosen_one_that_is_not_there_is_said_to_be(example: Path) -> None:
    with pytest.raises(HarmonyError, match=r"No forecaster 'absent' is installed \(there are: busiest-hour\)"):
        require_chosen(settings_of(forecaster="absent"))
    with pytest.raises(HarmonyError, match="No policy 'absent'"):
        require_chosen(settings_of(policy="absent"))
    require_chosen(settings_of(forecaster="busiest-hour", policy="even-numbers"))
