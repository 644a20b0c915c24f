"""A real Prometheus scrapes the gauges: the recipe has a value as long as the lease is in force, and no longer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agents.actuation.guard import ApplyGuard
from infra.actuate.controller import CommandController
from infra.actuate.pull import Answers, LeaseGauges
from infra.actuate.runner import wall_ms
from infra.observability.health import Health
from infra.observability.probes import ProbeServer
from tests.agents.actuation.test_apply_guard import TARGET, command
from tests.infra.actuate.test_manifests import queries
from tests.infra.observability.prometheus_server import Prometheus, prometheus
from tests.programs import needs

LEASE_MS = 12_000


async def test_no_fleet_is_too_large_for_its_gauges() -> None:
    """A workload without its series is one that KEDA or an HPA asks for in vain."""
    controller = CommandController(Answers("keda"), ApplyGuard(), wall_ms)
    now_ms = wall_ms()
    workloads = [f"prod/llm/service-{n:04d}" for n in range(1_200)]
    for workload in workloads:
        times = {"issued_ts_ms": now_ms, "valid_until_ts_ms": now_ms + 600_000}
        await controller.handle(command(1, 5, 3, workload=workload, target=TARGET, **times))
    wanted, until, *_ = LeaseGauges(controller).collect()
    for family in (wanted, until):
        assert [sample.labels["workload"] for sample in family.samples] == workloads


@needs("prometheus")
@pytest.mark.slow
async def test_the_recipe_follows_the_lease_in_a_real_prometheus(tmp_path: Path) -> None:
    controller = CommandController(Answers("keda"), ApplyGuard(), wall_ms)
    server = ProbeServer(Health(monotonic()), LeaseGauges(controller), port=0)
    await server.start()
    target = server.url.removeprefix("http://")
    scrape = {"job_name": "harmony", "honor_labels": True, "static_configs": [{"targets": [target]}]}
    recipe = queries()["keda"]
    adapter = queries()["adapter"].replace("chat-70b", "w")

    async def lease(sequence: int, replicas: int, expected: int) -> float:
        now_ms = wall_ms()
        until = {"issued_ts_ms": now_ms, "valid_until_ts_ms": now_ms + LEASE_MS}
        workload = "prod/llm/chat-70b"
        await controller.handle(command(sequence, replicas, expected, workload=workload, target=TARGET, **until))
        return (now_ms + LEASE_MS) / 1000

    def values(found: list[dict[str, Any]]) -> list[str]:
        return [sample["value"][1] for sample in found]

    def watch(p: Prometheus, wanted: list[str]) -> None:
        p.until(f"the recipe says {wanted}", lambda: values(p.query(recipe)) == wanted)

    def run(loop: asyncio.AbstractEventLoop) -> None:
        def give(*arguments: int) -> float:
            return asyncio.run_coroutine_threadsafe(lease(*arguments), loop).result(30)

        with prometheus(tmp_path / "p", [], scrape_configs=[scrape]) as p:
            p.until("the actuator is scraped", lambda: values(p.query("harmony_actuator_stopped")) == ["0"])
            assert p.query(recipe) == []
            give(1, 5, 3)
            watch(p, ["5"])
            until_s = give(2, 7, 5)
            watch(p, ["7"])
            assert values(p.query(adapter)) == ["7"]
            watch(p, [])
            assert time.time() >= until_s - 0.1, "not before the lease ran out"
            give(3, 6, 7)
            watch(p, ["6"])

    try:
        await asyncio.to_thread(run, asyncio.get_running_loop())
    finally:
        await server.stop()
