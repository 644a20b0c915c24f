"""How far the law of the engine is off after ten minutes: `python -m infra.lab.capacity.law_errors`.

Four replicas of a simulated engine serve requests of a load of the lab for ten minutes. The law reads their counters
and gauges every 15 s. Then it says what a replica carries of the mix that it saw, and of two mixes with longer prompts
or answers that it did not see. The peer is the formula with the engine's true costs, with a term that is quadratic in
the prompt. The declared figure is off by 30 %, either way.

The rows of the table are ways to learn: `prior` is the declared figure alone, `law` reads all that engines export,
`gauges` reads no time between tokens. `busy` reads none either, but which part of the time devices are busy: what is
counted is scaled to busy time.

`--move` prints another table: Llama-2 70B moves from A100 to H100, and its capacity there is told from what a replica
carried before. `costs` scales each cost by data sheets, `roofline` the figure by the ratio of two rooflines, and
`former` leaves the figure as it is.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from infra.console.errors import HarmonyError
from infra.lab.replay.cells import DEVELOPMENT, LOADS, cell_of, named_loads
from infra.lab.report import print_table
from infra.simulator.arrivals import Arrivals
from infra.simulator.cluster import Cluster, ConstantLeadTime
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile, named_profile
from model.capacity.law import EngineLaw, EngineSlot, Mix
from model.capacity.roofline import ACCELERATORS, ModelSize, cost_ratios, iteration_costs

WAYS: Final = ("prior", "law", "gauges", "busy")
REPLICAS: Final = 4
DURATION_S: Final = 600.0
_STEP_S, _READ_S = 15.0, 5.0
# The declared figure in parts of the true one, and the standard deviation of its logarithm that is declared with it.
_DECLARED_RATIOS: Final = (0.7, 1.3)
_OFF_BY: Final = math.log(1.5)
# Lengths of prompts and answers in parts of those seen.
_LENGTHS: Final = ((1.0, 1.0), (4.0, 1.0), (1.0, 3.0))
# Relative height and length of the wave that the load follows.
_WAVE_RATIO, _WAVE_S = 0.35, 400.0
# Part of the cache that a replica fills.
_CACHE_LIMIT: Final = 0.95
_WANTED_ERROR: Final = 0.15
# A move to another GPU type: fitted engines, their GPUs, and mixes of prompt and output tokens.
_ENGINES: Final = ("llama2-70b-a100-tp8", "llama2-70b-h100-tp8")
_GPU_TYPES: Final = ("a100-80gb", "h100")
_LLAMA_70B: Final = ModelSize(70e9, 70e9, 80, 8_192, 2.0 * 80 * 1_024 * 2.0)
_MOVED_MIXES: Final = ((900, 200), (1_155, 211), (4_000, 1_000), (4_000, 100), (300, 600))


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of a load, in their order, on the engine and with the limits that it is replayed with."""

    name: str
    profile: EngineProfile
    objective: Objective
    requests: Arrivals

    def mix(self, prompts: float, answers: float) -> tuple[Mix, float]:
        """The mean request with so many times as long prompts and answers, and the mean square of its prompt."""
        prompt, output = prompts * self.requests.prompt_tokens, answers * self.requests.output_tokens
        held = np.average(prompt + 0.5 * output, weights=output)
        mix = Mix(float(prompt.mean()), float(output.mean()), float(held) / self.profile.kv_capacity_tokens)
        return mix, float((prompt * prompt).mean())

    def carried_rps(self, prompts: float, answers: float) -> float:
        """Requests/s of one replica of that mix, by the engine's true costs."""
        p, (mix, square) = self.profile, self.mix(prompts, answers)
        cached_s = p.kv_token_s * p.kv_capacity_tokens * mix.cache_ratio
        work_s = p.prefill_token_s * mix.prompt_tokens + 0.5 * p.prefill_token_sq_s * square
        work_s += mix.output_tokens * (p.sequence_s + cached_s)
        most = _CACHE_LIMIT / mix.cache_ratio
        by_cache = most / (most + mix.output_tokens * p.base_s / work_s)
        return min(1.0 - p.base_s / self.objective.tpot_s, by_cache) / work_s

    def load(self, rate_rps: float, seed: int) -> Arrivals:
        """Ten minutes of its requests, at a Poisson rate that goes up and down."""
        rng = np.random.default_rng(seed)
        times, now_s = [], 0.0
        while now_s < DURATION_S:
            wave = 1.0 + _WAVE_RATIO * math.sin(2.0 * math.pi * now_s / _WAVE_S)
            now_s += float(rng.exponential(1.0 / (rate_rps * wave)))
            times.append(now_s)
        first = int(rng.integers(0, len(self.requests)))
        order = np.arange(first, first + len(times)) % len(self.requests)
        return Arrivals(np.array(times), self.requests.prompt_tokens[order], self.requests.output_tokens[order])


def slots_of(case: Case, load: Arrivals) -> Iterator[tuple[EngineSlot, float]]:
    """Telemetry of a load slot by slot, and the part of the slot in which engines ran."""
    cluster = Cluster(case.profile, REPLICAS, ConstantLeadTime(0.0), case.objective, keep_requests=False)
    cluster.feed(load)
    before, gauges = np.zeros(6), []
    for read in range(1, round(DURATION_S / _READ_S) + 1):
        cluster.advance(read * _READ_S)
        states = [cluster.state_of(replica) for replica in cluster.serving()]
        gauges.append([(s.running, s.waiting, s.kv_usage_ratio) for s in states])
        if read % round(_STEP_S / _READ_S):
            continue
        totals = [
            (s.prompt_tokens_total, s.generation_tokens_total, s.inter_token_s_total, s.inter_tokens_total, s.busy_s)
            for s in states
        ]
        now = np.array((cluster.num_arrived, *np.sum(totals, axis=0)), np.float64)
        arrived, prompt, output, gap_s, gaps, busy_s = (now - before).tolist()
        running, waiting, cached = np.sum(np.mean(gauges, axis=0), axis=0).tolist()
        before, gauges = now, []
        slot = EngineSlot(
            _STEP_S, REPLICAS, arrived / _STEP_S, prompt / _STEP_S, output / _STEP_S, running, waiting,
            cached / REPLICAS, gap_s / gaps if gaps else math.nan,
        )  # fmt: skip
        yield slot, busy_s / (_STEP_S * REPLICAS)


def told_of(slot: EngineSlot, busy_ratio: float, way: str) -> EngineSlot:
    """What a way to learn reads of a slot."""
    if way in ("prior", "law"):
        return slot
    slot = slot._replace(inter_token_s=math.nan)
    if way == "gauges" or busy_ratio <= 0.0:
        return slot
    scale = 1.0 / busy_ratio
    return slot._replace(
        arrival_rate=scale * slot.arrival_rate, prompt_rate=scale * slot.prompt_rate,
        output_rate=scale * slot.output_rate, running=scale * slot.running, waiting=scale * slot.waiting,
        cache_ratio=min(scale * slot.cache_ratio, 1.0),
    )  # fmt: skip


def errors_of(case: Case, load_ratio: float, seed: int) -> dict[str, list[list[float]]]:
    """By way to learn: relative errors [declared figures, mixes] of what a replica carries.

    Args:
        load_ratio: mean load in parts of what the replicas carry.
    """
    true_rps = [case.carried_rps(*lengths) for lengths in _LENGTHS]
    slots = list(slots_of(case, case.load(load_ratio * REPLICAS * true_rps[0], seed)))
    errors: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for way in WAYS:
        for ratio in _DECLARED_RATIOS:
            law = EngineLaw(case.objective.tpot_s, ratio * true_rps[0], _OFF_BY)
            for slot, busy_ratio in slots:
                law.observe(told_of(slot, busy_ratio, way))
                if way == "prior" and law.mix is not None:
                    break
            limits = [law.limit(case.mix(*lengths)[0]) for lengths in _LENGTHS]
            errors[way].append([
                math.nan if limit is None else limit.rate / true - 1.0
                for limit, true in zip(limits, true_rps, strict=True)
            ])  # fmt: skip
    return errors


def cases_of(names: Sequence[str], data: Path) -> list[Case]:
    """The loads of the lab by name.

    Raises:
        HarmonyError: a load that cannot be read.
    """
    cases = []
    for name in names:
        load = LOADS[name]
        requests = cell_of(load, 100.0, data).scored(0).load.arrivals
        cases.append(Case(name, named_profile(load.profile), Objective(load.ttft_s, load.tpot_s), requests))
    return cases


def move_rows() -> list[list[str]]:
    """By mix: the true ratio of what replicas carry, and the relative error of each way to tell it."""
    before, now = (named_profile(name) for name in _ENGINES)
    memory, arithmetic = (cost_ratios(*_GPU_TYPES) or (1.0, 1.0))[:2]
    scaled = replace(
        before, base_s=memory * before.base_s, kv_token_s=memory * before.kv_token_s,
        prefill_token_s=arithmetic * before.prefill_token_s, sequence_s=arithmetic * before.sequence_s,
        prefill_token_sq_s=arithmetic * before.prefill_token_sq_s,
    )  # fmt: skip
    rooflines = [
        replace(before, **{name: cost for name, cost in asdict(costs).items() if name != "kv_capacity_tokens"})
        for costs in (iteration_costs(_LLAMA_70B, ACCELERATORS[name], 8) for name in _GPU_TYPES)
    ]
    rows = []
    for prompt, output in _MOVED_MIXES:
        requests = Arrivals(np.zeros(1), np.array([prompt]), np.array([output]))
        former, true, by_costs, old, new = (
            Case("", profile, Objective(5.0, 0.15), requests).carried_rps(1.0, 1.0)
            for profile in (before, now, scaled, *rooflines)
        )
        errors = [told / true - 1.0 for told in (by_costs, former * new / old, former)]
        rows.append([f"{prompt}, {output}", f"{true / former:.2f}", *(f"{error:+.0%}" for error in errors)])
    return rows


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=DEVELOPMENT, help="development, shown, all or names between commas")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("HARMONY_DATA_DIR", "data")))
    parser.add_argument("--loads", default="0.55,0.2", help="mean loads, in parts of what the replicas carry")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--move", action="store_true", help="to another GPU type instead")
    options = parser.parse_args(arguments)
    if options.move:
        print_table(("tokens", "true ratio", "costs", "roofline", "former"), move_rows())
        return 0
    names = [name for name in named_loads(options.cells) if _is_there(name, options.data)]
    rows = []
    for case in cases_of(names, options.data):
        for load_ratio in map(float, options.loads.split(",")):
            runs = [errors_of(case, load_ratio, seed) for seed in range(options.seeds)]
            rows += [[case.name, f"{load_ratio:g}", *_row(way, [run[way] for run in runs])] for way in WAYS]
    headings = ["load", "of capacity", "way", "same mix", "prompts x4", "answers x3", "shifted within 15 %"]
    note = "Mean absolute error of what a replica carries, and the largest. Means over seeds and declared figures."
    print_table(headings, rows, note, left=["way"])
    return 0


def _is_there(name: str, data: Path) -> bool:
    source = LOADS[name].source
    return "/" not in source or (data / source).exists()


def _row(way: str, runs: Sequence[Sequence[Sequence[float]]]) -> list[str]:
    errors = np.abs(np.array(runs)).reshape(-1, len(_LENGTHS))
    within = float((errors[:, 1:] <= _WANTED_ERROR).mean())
    means, largest = errors.mean(axis=0), errors.max(axis=0)
    return [way, *(f"{mean:.0%} ({most:.0%})" for mean, most in zip(means, largest, strict=True)), f"{within:.0%}"]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HarmonyError as error:
        sys.exit(str(error))
