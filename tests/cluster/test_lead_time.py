"""An HPA raises the replicas, pods are ready some time later, and HARMONY learns from the counts how long it takes.

command ─▶ external metric ─▶ HPA ─▶ Deployment ─▶ pods ─▶ ready, by a pretended kubelet ─▶ fleet facts ─▶ posterior
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from statistics import NormalDist
from time import monotonic
from typing import Any

import pytest

from agents.policy import Policy, WorkloadSpec
from agents.workload.state import new_state
from infra.actuate.kubernetes import FactsReader
from infra.actuate.kubernetes_api import Access, KubernetesApi
from infra.actuate.runner import wall_ms
from streams.pages.page import WorkloadFacts
from streams.records.facts import FleetFacts
from streams.windows.table import RecentFacts, Window
from tests.agents.workload.test_lead_times import COLUMNS, EMPTY, UNOBSERVED
from tests.cluster.cluster import Cluster
from tests.cluster.hpa import DEPLOYMENT, scaled_by_hpa
from tests.cluster.our_side import NAME, Side
from tests.cluster.targets import target_of

NUM_STARTS, AT_ONCE, FIRST = 20, 4, 20
MEDIAN_S, SIGMA = 6.0, 0.15
DELAY = NormalDist(math.log(MEDIAN_S), SIGMA)
LOOK_S = 0.25
PODS = "/api/v1/namespaces/prod/pods"


class Kubelet(threading.Thread):
    """Makes each pod of the Deployment ready a delay after the count was raised; the first ones at once."""

    def __init__(self, cluster: Cluster, delays_s: list[float]) -> None:
        super().__init__(daemon=True)
        self._cluster, self._delays_s = cluster, delays_s
        self._ready: set[str] = set()
        self._due = [0.0] * FIRST
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.05):
            wanted = self._cluster.call("GET", DEPLOYMENT)["spec"]["replicas"]
            ordered = len(self._ready) + len(self._due)
            self._due += [monotonic() + self._delays_s.pop() for _ in range(ordered, wanted)]
            self._due.sort()
            if self._is_due():
                self._make_ready()

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0] <= monotonic()

    def _make_ready(self) -> None:
        for pod in self._pods():
            if pod not in self._ready and self._is_due():
                condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                status = {"phase": "Running", "conditions": [condition]}
                self._cluster.call("PATCH", f"{PODS}/{pod}/status", {"status": status})
                self._ready.add(pod)
                self._due.pop(0)

    def _pods(self) -> list[str]:
        """Of the present Deployment; those of an earlier one of its name stay, as nothing collects garbage here."""
        uid = self._cluster.call("GET", DEPLOYMENT)["metadata"]["uid"]
        sets = self._cluster.call("GET", "/apis/apps/v1/namespaces/prod/replicasets")["items"]
        own = {s["metadata"]["uid"] for s in sets if _owner(s) == uid}
        return [p["metadata"]["name"] for p in self._cluster.call("GET", PODS)["items"] if _owner(p) in own]


def _owner(thing: dict[str, Any]) -> str:
    return str(thing["metadata"].get("ownerReferences", [{"uid": ""}])[0]["uid"])


async def test_twenty_starts_through_an_hpa_teach_the_lead_time(cluster: Cluster) -> None:
    # Evenly through the distribution, in random order, so that the sample has its quantiles.
    delays_s = [math.exp(DELAY.inv_cdf((n + 0.5) / NUM_STARTS)) for n in range(NUM_STARTS)]
    random.Random(5).shuffle(delays_s)
    state = new_state("w", Policy(workloads=(WorkloadSpec("w", lead_time_s=60.0),)), 0)
    facts: list[FleetFacts] = []
    target = target_of("Deployment", NAME)
    access = Access(cluster.url, cluster.token_of("harmony", "harmony-actuator"), cluster.ca_file)

    async with KubernetesApi(access) as api:
        reader = FactsReader(api, lambda: {"w": target}, wall_ms, lambda _, f: facts.append(f), lambda *_: None)

        async def look_until(replicas: int) -> None:
            deadline = monotonic() + 90
            while not facts or facts[-1].ready < replicas:
                assert monotonic() < deadline, f"not {replicas} ready: {facts[-1:]}"
                await reader.look()
                fleet = facts[-1]
                recent = RecentFacts(fleet, None, {}, {"requests": WorkloadFacts(1, fleet.ts_ms, 1, 1)})
                window = Window("w", COLUMNS, EMPTY, UNOBSERVED, recent, lambda: (EMPTY[:0, :3], UNOBSERVED[:0, :3]))
                state.learn(window, fleet, [], wall_ms(), round(1000 * LOOK_S))
                await asyncio.sleep(LOOK_S)

        with scaled_by_hpa(cluster) as side:
            kubelet = Kubelet(cluster, delays_s)
            kubelet.start()
            try:
                for replicas in range(FIRST, FIRST + NUM_STARTS + 1, AT_ONCE):
                    if replicas > FIRST:
                        await asyncio.to_thread(Side.order, side, replicas, replicas - AT_ONCE)
                    await look_until(replicas)
            finally:
                kubelet.stop.set()
                kubelet.join(30)
    print("learned median and q95:", [round(state.lead.quantile(level), 2) for level in (0.5, 0.95)])
    assert state.lead.num_starts == NUM_STARTS
    assert state.lead.quantile(0.95) == pytest.approx(math.exp(DELAY.inv_cdf(0.95)), rel=0.1)
