"""The control arm of `plan-time` simulates every count of each workload: `python -m tests.claims.exhaustive_plan`."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from agents.planning.planner import plan, warm_up
from agents.policy import Policy
from infra.lab.bench.plan import PlanBench, _capacity, _lead_time, _paths, _request, check_plans
from infra.lab.report import document, load_average, write_json

_WORKLOADS = 10_000
_THREADS = 2


def main() -> None:
    """Time the check of the bench, which simulates all counts, and scale it to the fleet of the claim."""
    parser = argparse.ArgumentParser(prog="python -m tests.claims.exhaustive_plan")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    bench = PlanBench(checked=4)
    loads = [load_average()]
    warm_up()
    requests = [_request(i, bench.candidates, _capacity(), _lead_time(), spare=12) for i in range(bench.checked)]
    paths = _paths(bench.checked, bench)
    plans = plan(requests, paths, Policy())
    begun = perf_counter()
    check_plans(requests, plans, paths[..., 0].numpy(), Policy())
    taken_s = (perf_counter() - begun) * _WORKLOADS / (bench.checked * _THREADS)
    loads.append(load_average())
    job = {"workloads": _WORKLOADS, "threads": _THREADS, "checked": bench.checked}
    write_json(asked.json, document("plan-exhaustive", job, {"exhaustive_s": taken_s}, loads))


if __name__ == "__main__":
    main()
