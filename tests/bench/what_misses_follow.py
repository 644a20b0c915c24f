"""Which load misses follow: `python -m tests.bench.what_misses_follow RUN TTFT TPOT`.

RUN is a folder that `harmony replay --log-dir` wrote. Of slots of ten seconds it tells how well requests, prompt tokens
and output tokens per ready replica tell missed requests from good ones: the chance that a missed one came in a slot of
more load than a good one (1 always, .5 by chance). And how far the mean prompt of 160 s wanders, beside what so many
lengths drawn at random would.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

SLOT_S, WINDOW_SLOTS = 10.0, 16


def column(rows: list[dict[str, str]], name: str) -> Float:
    """Numbers of a column; infinite where nothing stands."""
    return np.array([float(row[name]) if row[name] else np.inf for row in rows])


def replicas_ready(replicas: list[dict[str, str]], slots: int) -> Float:
    """Mean number of replicas that take requests in each slot."""
    starts = SLOT_S * np.arange(slots)
    ready = np.zeros(slots)
    for since, until in zip(column(replicas, "ready_s"), column(replicas, "drain_s"), strict=True):
        ready += np.clip(np.minimum(until, starts + SLOT_S) - np.maximum(since, starts), 0.0, SLOT_S) / SLOT_S
    return ready


def told_apart(load: Float, missed: Float, good: Float) -> float:
    """Chance that a missed request's slot had more load than a good one's, ties half."""
    order = np.argsort(load, kind="stable")
    _, same = np.unique(load[order], return_inverse=True)
    bad, fine = np.bincount(same, missed[order]), np.bincount(same, good[order])
    below = fine.cumsum() - fine / 2
    return float(bad @ below / (bad.sum() * fine.sum()))


def wandering(requests: Float, tokens: Float, lengths: Float) -> tuple[float, float]:
    """Relative spread of the mean length over windows, and what chance alone would give."""
    ends = np.arange(WINDOW_SLOTS, len(requests) + 1)
    counted, summed = (np.concatenate(([0.0], x.cumsum())) for x in (requests, tokens))
    num = counted[ends] - counted[ends - WINDOW_SLOTS]
    means = (summed[ends] - summed[ends - WINDOW_SLOTS])[num > 0] / num[num > 0]
    return float(means.std() / means.mean()), float(lengths.std() / lengths.mean() / np.sqrt(num.mean()))


def main(run: Path, ttft_s: float, tpot_s: float) -> None:
    """Print what was found."""
    requests, replicas = (
        list(csv.DictReader((run / name).open(encoding="utf-8"))) for name in ("requests.csv", "replicas.csv")
    )
    arrival, first, finish = (column(requests, name) for name in ("arrival_s", "first_token_s", "finish_s"))
    prompt, output = column(requests, "prompt_tokens"), column(requests, "output_tokens")
    missed = ~((first - arrival <= ttft_s) & (finish - first <= tpot_s * np.maximum(output - 1, 1)))
    slot = (arrival // SLOT_S).astype(np.int64)
    num = int(slot.max()) + 1
    ready = np.maximum(replicas_ready(replicas, num), 1e-9)
    bad, good = np.bincount(slot, missed, num), np.bincount(slot, ~missed, num)
    print(f"{missed.mean():.2%} of {len(missed):,} requests missed")
    for name, amount in (("requests", np.ones(len(slot))), ("prompt tokens", prompt), ("output tokens", output)):
        print(f"{name:14} {told_apart(np.bincount(slot, amount, num) / ready, bad, good):.3f}")
    spread, chance = wandering(np.bincount(slot, minlength=num).astype(np.float64), np.bincount(slot, prompt), prompt)
    print(f"mean prompt over {WINDOW_SLOTS * SLOT_S:.0f} s: spread {spread:.3f} of itself, by chance {chance:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
