"""The Fisher protocol: one step ahead on ten containers of a cluster, 70 / 10 / 20, min-max scaled by the train rows.

All test windows are the primary figure. The published table scored whole batches of 32 only; that subset is scored
beside it. Source: Y. Luo et al., "HARMONY", arXiv 2408.01000, and its public code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from model.evaluation.dataset import Floats
from model.evaluation.rolling import Rows
from model.evaluation.scores import COVERAGES, central_intervals, crps_of_paths, energy_score, probability_integral

NUM_SAMPLES = 100
PUBLISHED = {72: (0.04529, 0.09953), 144: (0.04576, 0.09399), 288: (0.04741, 0.10965)}  # mse, crps
_BATCH = 32
# Levels by meaning: load 1, processor and memory 2, input and output 3.
LEVELS = {
    "load": 1,
    "blkio.throttle.io_service_bytes_Async": 3,
    "blkio.throttle.io_service_bytes_Read": 3,
    "container_cpu_usage_seconds_total": 2,
    "container_memory_active_file": 2,
    "container_memory_hierarchical_memory_limit": 2,
    "container_memory_rss": 2,
    "container_network_tcp_TimeWait": 3,
    "cpu.busy": 2,
    "mem.memused": 2,
    "net.if.in.bytes": 3,
}


def indicator_levels(names: Sequence[str]) -> list[int]:
    """Level of each indicator, 1 for those the protocol does not know."""
    return [LEVELS.get(name, 1) for name in names]


@dataclass(frozen=True, slots=True)
class Answer:
    """One contestant's forecasts of the test rows.

    Attributes:
        point: float64 [T, N], scored by mse and mae.
        samples: float64 [T, S, N], scored by CRPS and coverage; joint over the indicators.
    """

    point: Floats
    samples: Floats


@dataclass(eq=False)
class Asked:
    """One container and input length.

    Attributes:
        scaled: float64 [T, N], all rows, min-max scaled by the train rows, not clipped.
        length: L; inputs of target t are rows t-L..t-1.
        low, spread: [N], so that raw = low + scaled * spread.
        beside: all containers of the run at this input length, this one among them; none: this one alone.
        memo, scratch: answers given, and what contestants share.
    """

    name: str
    scaled: Floats
    low: Floats
    spread: Floats
    names: tuple[str, ...]
    start_ts_ms: int
    length: int
    contestants: dict[str, Callable[[Asked], Answer]]
    max_targets: int | None = None
    beside: list[Asked] = field(default_factory=list, repr=False)
    num_train: int = field(init=False)
    num_test: int = field(init=False)
    memo: dict[str, Answer] = field(init=False, default_factory=dict)
    scratch: dict[str, Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.num_train, _, self.num_test = split_counts(len(self.scaled))

    @property
    def train(self) -> Rows:
        return np.arange(self.length, self.num_train)

    @property
    def validation(self) -> Rows:
        return np.arange(self.num_train, len(self.scaled) - self.num_test)

    @property
    def test(self) -> Rows:
        rows = np.arange(len(self.scaled) - self.num_test, len(self.scaled))
        return rows if self.max_targets is None else rows[: self.max_targets]

    def windows(self, targets: Rows) -> Floats:
        """Inputs of the targets, [T, L, N]."""
        taken: Floats = self.scaled[targets[:, None] + np.arange(-self.length, 0)]
        return taken

    def ask(self, name: str) -> Answer:
        """A contestant's answer, computed once.

        Raises:
            KeyError: there is no contestant of that name.
        """
        if name not in self.memo:
            self.memo[name] = self.contestants[name](self)
        return self.memo[name]


@dataclass(frozen=True, slots=True)
class FisherScores:
    """Scores of one contestant on one container, [T, N] unless said.

    Attributes:
        inside: {level: [T, N]} 1 where the central interval holds y.
        width_90: width of the 90 % interval.
        energy: [T], over the indicators that move.
        moving: bool [N], not constant in the container.
    """

    squared: Floats
    absolute: Floats
    crps: Floats
    inside: dict[float, Floats]
    width_90: Floats
    integral: Floats
    energy: Floats
    moving: Floats


def split_counts(num_rows: int) -> tuple[int, int, int]:
    """Train, validation and test rows."""
    train, test = int(num_rows * 0.7), int(num_rows * 0.2)
    return train, num_rows - train - test, test


def scale(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Min-max scaling fitted on the train rows: scaled rows, minimum, spread (1 where constant)."""
    train = values[: split_counts(len(values))[0]]
    low, high = train.min(0), train.max(0)
    spread = np.where(high > low, high - low, 1.0)
    return (values - low) / spread, low, spread


def published_rows(num_test: int) -> int:
    """How many of the first test windows the published table scored."""
    return num_test // _BATCH * _BATCH


def score(asked: Asked, answer: Answer) -> FisherScores:
    """All figures of the protocol, per cell."""
    y = asked.scaled[asked.test]
    truth = torch.from_numpy(y)
    sample = torch.from_numpy(answer.samples).permute(0, 2, 1).to(torch.float64)  # [T, N, S]
    inside, width = (values.numpy().astype(float) for values in central_intervals(sample, truth))
    moving = asked.scaled.std(0) > 0
    joint = torch.from_numpy(answer.samples[..., moving])
    return FisherScores(
        squared=(answer.point - y) ** 2,
        absolute=np.abs(answer.point - y),
        crps=crps_of_paths(sample, truth).numpy(),
        inside={level: inside[..., k] for k, level in enumerate(COVERAGES)},
        width_90=width[..., COVERAGES.index(0.9)],
        integral=probability_integral(sample, truth).numpy(),
        energy=energy_score(joint, truth[:, torch.from_numpy(moving)]).numpy() / np.sqrt(max(1, moving.sum())),
        moving=moving,
    )
