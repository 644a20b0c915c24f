"""Estimates beside measurements: `python -m tests.bench.roofline_check DATA`.

DATA holds the sets that `harmony replay` is measured on. Two comparisons: seconds of an iteration against Splitwise's
table (A100 and H100, 2 to 8 of them, Llama-2 70B and BLOOM), and requests/s of a replica against engines whose costs
were fitted to measurements, at several lengths and limits.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from agents.policy import Slo
from infra.lab.capacity.load_tests import of_profile, profile_of
from infra.lab.capacity.model_files import size_of
from infra.simulator.arrivals import Tokens
from infra.simulator.profiles import EngineProfile, load_profile
from model.capacity.roofline import ACCELERATORS, IterationCosts, iteration_costs
from tests.infra.lab.capacity.configs import PUBLISHED

LLAMA_70B, BLOOM, OPT_13B = (size_of(PUBLISHED[name][0]) for name in ("Llama 2 70B", "BLOOM", "OPT 13B"))
TABLE = {"llama2-70b": LLAMA_70B, "bloom-176b": BLOOM}
CARDS = {"a100-80gb": "a100-80gb", "h100-80gb": "h100"}
ENGINES = (
    ("opt13b-a100", OPT_13B, "a100-80gb"),
    ("llama2-70b-a100-tp8", LLAMA_70B, "a100-80gb"),
    ("llama2-70b-h100-tp8", LLAMA_70B, "h100"),
)
LENGTHS = ((200, 200), (900, 200), (2_000, 300), (500, 800))
LIMITS = ((3.0, 0.1), (3.0, 0.2), (10.0, 0.15))  # seconds: first token, each further one


def main() -> None:
    data = Path(sys.argv[1])
    print("seconds of an iteration, estimated / measured (median, and the middle nine tenths)\n")
    print("| model | GPUs | reading a prompt | generating |")
    print("|---|---|---|---|")
    for (model, card, num), ratios in sorted(_iterations(data / "llm-perf" / "splitwise_perf_model.csv.gz").items()):
        prompt, token = (_spread([pair[k] for pair in ratios]) for k in (0, 1))
        print(f"| {model} | {num} x {card} | {prompt} | {token} |")
    print("\nrequests/s of a replica, estimated / by fitted costs\n")
    print("| engine | " + " | ".join(f"{p}, {o} tokens" for p, o in LENGTHS) + " |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    everything: list[float] = []
    for name, size, card in ENGINES:
        fitted = load_profile(data / "replay-profiles" / f"{name}.json")
        costs = iteration_costs(size, ACCELERATORS[card], fitted.gpus_per_replica)
        estimated = profile_of(name, costs, fitted.gpus_per_replica, fitted.max_batch, fitted.max_prefill_tokens)
        cells = []
        for prompt_tokens, output_tokens in LENGTHS:
            law = Tokens(prompt_tokens, 0.6), Tokens(output_tokens, 0.6)
            ratios = [_carried(estimated, *law, limits) / _carried(fitted, *law, limits) for limits in LIMITS]
            everything += ratios
            cells.append(", ".join(f"{ratio:.2f}" for ratio in ratios))
        print(f"| {name} | " + " | ".join(cells) + " |")
    logs = [math.log(ratio) for ratio in everything]
    off = math.sqrt(sum(log * log for log in logs) / len(logs))
    print(f"\nroot mean square of the logarithm: a factor of {math.exp(off):.2f}; median {median(everything):.2f}")


def _carried(profile: EngineProfile, prompt: Tokens, output: Tokens, limits: tuple[float, float]) -> float:
    return of_profile(profile, prompt, output, Slo(*limits, 0.99)).capacity_rps


def _iterations(path: Path) -> dict[tuple[str, str, int], list[tuple[float, float]]]:
    ratios: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for model, card, num, prompt, tokens, batch, prompt_s, token_s in _rows(path):
        costs = iteration_costs(TABLE[model], ACCELERATORS[CARDS[card]], num)
        ratios[model, card, num].append(
            (_reading(costs, prompt, batch) / prompt_s, _generating(costs, prompt + tokens / 2, batch) / token_s)
        )
    return ratios


def _rows(path: Path) -> Iterator[tuple[str, str, int, int, int, int, float, float]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["hardware"] in CARDS:
                numbers = (int(row[name]) for name in ("tensor_parallel", "prompt_size", "token_size", "batch_size"))
                yield (
                    row["model"],
                    row["hardware"],
                    *numbers,
                    *(float(row[n]) / 1000 for n in ("prompt_time", "token_time")),
                )  # type: ignore[misc]


def _reading(costs: IterationCosts, prompt: int, batch: int) -> float:
    return costs.base_s + costs.prefill_token_s * prompt * batch + costs.prefill_token_sq_s * prompt * prompt * batch


def _generating(costs: IterationCosts, cached: float, batch: int) -> float:
    return costs.base_s + costs.sequence_s * batch + costs.kv_token_s * cached * batch


def _spread(ratios: list[float]) -> str:
    ordered = sorted(ratios)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.95))
    return f"{median(ordered):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
