"""A small replay: one engine, a load of three steps, an objective."""

from __future__ import annotations

import numpy as np

from infra.lab.replay.policies.catalogue import OperatorKnowledge
from infra.lab.replay.setting import ScoredLoad, Setting
from infra.simulator.arrivals import Arrivals
from infra.simulator.ledger import Objective
from infra.simulator.profiles import EngineProfile

# Half a second per iteration of any size: at most 8 requests at once make 2 requests/s of 8 tokens.
HALF = EngineProfile("half", 0.5, 0.0, 0.0, 0.0, 10_000_000, 8, 1_000_000, 2)
OBJECTIVE = Objective(2.0, 1.0)


def poisson(rate_rps: float, end_s: float, seed: int, start_s: float = 0.0) -> Arrivals:
    rng = np.random.default_rng(seed)
    count = rng.poisson(rate_rps * (end_s - start_s))
    return Arrivals(np.sort(rng.uniform(start_s, end_s, count)), np.full(count, 20), np.full(count, 8))


def setting(lead_s: float = 20.0, **changes: object) -> Setting:
    arrivals = Arrivals.joined([poisson(1.0, 300.0, 1), poisson(5.0, 600.0, 2, 300.0), poisson(1.0, 900.0, 3, 600.0)])
    values: dict[str, object] = {"max_replicas": 6, "lead_s": lead_s, "initial_replicas": 1, "share": 0.95}
    return Setting(ScoredLoad("steps", arrivals, (60.0, 900.0)), HALF, OBJECTIVE, **(values | changes))  # type: ignore[arg-type]


KNOWN = OperatorKnowledge(1.5, 6.0, np.empty(0))
