"""A workload some of whose engines are not heard: what its decisions say and hold, and what is learned meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from agents.policy import Slo
from agents.records import Decision
from agents.workload.signals import SignalLimits, input_facts
from infra.lab.replay.loop import MemoryLoop
from model.baselines.smoothing import SeasonalNaiveForecaster
from streams.catalogue import DEFAULT_CATALOGUE
from streams.config import StreamConfig
from streams.pages.page import WorkloadFacts
from streams.records.facts import FleetFacts
from streams.records.schema import encode_fleet, encode_sample
from streams.windows.table import RecentFacts, Window
from tests.agents.planning.plan_samples import policy, spec

STEP_MS = 5_000
START_MS = 1_763_636_400_000
RATE = 12.0  # requests/s
MISSED = range(120, 200)  # slots in which engines miss a tenth of what they serve


class Engines:
    """Four engines behind a balancer, and what is told of them.

    Args:
        silent: how many of them are not read from slot 60 on, until slot `back`.
    """

    def __init__(self, silent: int, back: int = 10_000) -> None:
        declared = spec(workload="w", capacity_rps=4.0, slo=Slo(ttft_s=2.0, tpot_s=0.2))
        stream = StreamConfig(step_ms=STEP_MS, context_steps=64)
        self._silent, self._back = silent, back
        self.loop = MemoryLoop(policy(declared, paths_screen=32), stream, SeasonalNaiveForecaster())
        self._totals = [0.0, 0.0, 0.0]
        self.slot = 0

    def live(self, slots: int) -> list[Decision]:
        for _ in range(slots):
            begin = START_MS + self.slot * STEP_MS
            deaf = 60 <= self.slot < self._back
            values = []
            for ts_ms in (begin + 1_000, begin + 4_900):
                started = RATE / 4 * 2.5
                grown = (started, started * 200.0, started * (0.9 if self.slot in MISSED else 1.0))
                self._totals = [total + more for total, more in zip(self._totals, grown, strict=True)]
                told = {
                    "requests_started_total": self._totals[0],
                    "generation_tokens_total": self._totals[1],
                    "slo_total": self._totals[0],
                    "slo_good_total": self._totals[2],
                    "num_requests_running": 9.0,
                    "num_requests_waiting": 0.0,
                }
                heard = range(self._silent if deaf else 0, 4)
                values += [encode_sample("requests", "w", f"engine-{k}", ts_ms, told) for k in heard]
            values.append(encode_fleet("w", "k8s", FleetFacts(begin + 4_900, 4, 0, 0)))
            self.loop.close_slot("w", values, begin + STEP_MS)
            self.slot += 1
        return self.loop.decisions[-slots:]


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_the_load_is_whole_and_nothing_is_given_up_while_some_are_silent(silent: int) -> None:
    engines = Engines(silent)
    heard = engines.live(60)[-1]
    deaf = engines.live(50)[6:]
    engines.loop.close()
    assert heard.inputs.coverage_ratio == 1.0
    assert {d.inputs.coverage_ratio for d in deaf} == {1.0 - silent / 4}
    assert [d.inputs.arrival_rate for d in deaf] == pytest.approx([RATE] * len(deaf), rel=0.01)
    assert {d.replicas.final for d in deaf} == {heard.replicas.final}


def test_what_others_serve_teaches_nothing_of_the_silent() -> None:
    """A tenth of the requests misses while two of four are silent, and goes on to when they are heard again."""
    told = {}
    for silent in (0, 2):
        engines = Engines(silent, back=180)
        before = engines.live(119)[-1]
        while_deaf, after = engines.live(60)[-1], engines.live(21)[-1]
        engines.loop.close()
        told[silent] = [d.capacity_per_replica.values[2] for d in (before, while_deaf, after) if d.capacity_per_replica]
    assert told[0][1] < 0.9 * told[0][0], "misses that are measured are believed"
    assert told[2][1] == pytest.approx(told[2][0], rel=0.02)
    assert told[2][2] < 0.95 * told[2][1]


def test_gpus_do_not_hide_a_silent_engine() -> None:
    columns = {indicator.name: n for n, indicator in enumerate(DEFAULT_CATALOGUE)}
    values, observed = np.ones((8, len(columns)), np.float32), np.ones((8, len(columns)), np.bool_)

    def coverage(requests: WorkloadFacts | None, gpus: WorkloadFacts | None, missing: int = 0) -> float:
        told = {"requests": requests, "gpu": gpus}
        facts = RecentFacts(None, None, {}, {name: f for name, f in told.items() if f is not None})  # type: ignore[misc]
        window = Window("w", columns, values, observed, facts, lambda: (values, observed))
        return input_facts(window, 0, STEP_MS, 3, SignalLimits(0.5, 3), {}, 8, missing).coverage_ratio

    def sources(seen: int, known: int) -> WorkloadFacts:
        return WorkloadFacts(seen, 0, seen, known)

    assert coverage(sources(4, 4), sources(32, 32)) == 1.0
    assert coverage(sources(3, 4), sources(32, 32)) == 0.75
    assert coverage(sources(3, 3), sources(32, 32), missing=1) == 0.75
    assert coverage(sources(4, 4), sources(16, 32)) == 0.5
    assert coverage(sources(4, 4), None) == 1.0
    assert coverage(sources(0, 0), None) == coverage(None, None) == 0.0
