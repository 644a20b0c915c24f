"""Replicas set through `/scale`, with the resource version as the last compare-and-set, and facts and outcomes back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

import aiohttp
import orjson
import structlog

from agents.records import Target
from infra.actuate.actuator import NotApplied, ReplicaChange
from infra.actuate.kubernetes_api import FIELD_MANAGER, KubernetesApi, Scale
from infra.console.text import printable
from infra.console.web import split_url
from streams.records.facts import FleetFacts, OutcomeFact

COST = "controller.kubernetes.io/pod-deletion-cost"
_READY_DEADLINE_MS = 3_600_000

log = structlog.get_logger()

# Load of each pod by name, to give up the idle ones first.
PodLoads = Callable[[Target, Iterable[str]], Awaitable[Mapping[str, float]]]


class Kubernetes:
    """An actuator on one API server.

    Args:
        api: its `dry_run` decides whether anything is changed.
        loads: where the load of pods is to be had, for the choice of victims; None = the ReplicaSet chooses.
        take_over: targets whose count another HARMONY set are set all the same, once. If the other one sets them
            again, it is the one that was given them.
    """

    name = "kubernetes"
    done: Literal["applied"] = "applied"

    def __init__(self, api: KubernetesApi, *, loads: PodLoads | None = None, take_over: bool = False) -> None:
        self._api, self._loads, self._take_over = api, loads, take_over
        self._scales: dict[str, Scale] = {}
        self._taken: set[Target] = set()

    async def observe(
        self,
        workload: str,
        target: Target,
        expected: int | None,  # noqa: ARG002
        in_force: int | None,  # noqa: ARG002
    ) -> int:
        scale = await self._api.scale(target)
        self._scales[workload] = scale
        return scale.replicas

    async def apply(self, change: ReplicaChange) -> str:
        scale = self._scales[change.workload]
        detail = ""
        if not self._take_over or change.target in self._taken:
            other = await another_harmony(self._api, change.target)
            if other is not None:
                raise NotApplied(other, sure=True, refused=True)
        if self._loads is not None and change.replicas < scale.replicas and change.target.kind == "Deployment":
            detail = await self._mark_victims(change, scale)
        if not change.still_wanted():
            raise NotApplied("no longer wanted", sure=True)
        await self._api.set_scale(change.target, change.replicas, scale.version)
        self._taken.add(change.target)
        return detail

    async def _mark_victims(self, change: ReplicaChange, scale: Scale) -> str:
        """The deletion cost of a pod is its load, so that the idle ones go first. A failure here stops nothing."""
        assert self._loads is not None
        namespace = change.target.namespace
        try:
            pods = await self._api.pods(namespace, scale.selector)
            loads = await self._loads(change.target, [name for name, _ in pods])
            marked = 0
            for name, annotations in pods:
                # A pod whose load nobody knows is not given up before one that is known to be idle.
                cost = str(min(round(loads.get(name, 1e6)), 2**31 - 1))
                if annotations.get(COST) != cost:
                    await self._api.annotate_pod(namespace, name, {COST: cost})
                    marked += 1
        except NotApplied as error:
            log.warning("victims_not_marked", workload=change.workload, reason=error.detail)
            return f"victims not marked: {error.detail}"
        return f"marked {marked} pods with their load"


async def rivals(api: KubernetesApi, targets: Iterable[Target]) -> list[str]:
    """HPAs that scale one of these targets too, in words; none where they may not be listed."""
    keys = {(t.namespace, t.kind, t.name) for t in targets}
    conflicts = []
    for namespace in sorted({namespace for namespace, _, _ in keys}):
        try:
            scalers = await api.scalers(namespace)
        except NotApplied as error:
            log.warning("rivals_not_listed", namespace=namespace, reason=error.detail)
            continue
        conflicts += [
            f"{namespace}/{hpa} on {kind} {name}" for hpa, kind, name in scalers if (namespace, kind, name) in keys
        ]
    return conflicts


async def another_harmony(api: KubernetesApi, target: Target) -> str | None:
    """In words, the HARMONY of another Kafka or prefix that set the count of this target last; None where none did.

    Raises:
        NotApplied: the target cannot be read.
    """
    owner = await api.owner(target)
    if owner is None or owner.manager == api.manager or not owner.manager.startswith(f"{FIELD_MANAGER}-"):
        return None
    since = f" at {owner.since}" if owner.since else ""
    return (
        f"another HARMONY ({printable(owner.manager, 80)}) set the replicas of {target.kind} "
        f"{target.namespace}/{target.name}{since}"
    )


async def other_harmonies(api: KubernetesApi, targets: Iterable[Target]) -> list[str]:
    """In words, which targets another HARMONY set last; one that cannot be read is left to the first command."""
    found = []
    for target in targets:
        try:
            other = await another_harmony(api, target)
        except NotApplied as error:
            log.warning("owner_not_read", target=target.name, reason=error.detail)
            continue
        found += [other] if other is not None else []
    return found


def gpu_difference(target: Target, declared: int, asked: Mapping[str, int]) -> str | None:
    """What a target asks for where that is another number of GPUs than is declared, and the remedy; else None.

    A target that asks for no GPU says nothing: its devices may reach it in another way.
    """
    total = sum(asked.values())
    if total in (0, declared):
        return None
    named = ", ".join(f"{count} {printable(name, 80)}" for name, count in sorted(asked.items()))
    return (
        f"a replica of {target.kind} {target.namespace}/{target.name} asks for {named}, but gpus_per_replica is "
        f"{declared}, which budgets and costs count: set gpus_per_replica to {total}, or change the target"
    )


class FactsReader:
    """Reads the declared targets again and again: fleet facts for the decisions, and when ordered replicas are ready.

    Args:
        facts: told the counts of each workload.
        outcome: told when the replicas of a command serve, with the time it took.
        gpus_per_replica: as declared; a target that asks for another number is reported once.
    """

    def __init__(
        self,
        api: KubernetesApi,
        targets: Callable[[], Mapping[str, Target]],
        clock: Callable[[], int],
        facts: Callable[[str, FleetFacts], None],
        outcome: Callable[[str, OutcomeFact], None],
        gpus_per_replica: Mapping[str, int] | None = None,
    ) -> None:
        self._gpus_per_replica = gpus_per_replica or {}
        self._generations: dict[str, int] = {}
        self._reported: dict[str, str] = {}
        self._api, self._targets, self._clock = api, targets, clock
        self._facts, self._outcome = facts, outcome
        self._launched: dict[str, tuple[str, int, int]] = {}
        self._silent: set[str] = set()

    def launched(self, workload: str, command_id: str, replicas: int, at_ms: int) -> None:
        """A command has just raised the count; its lead time runs until so many are ready."""
        self._launched[workload] = command_id, replicas, at_ms

    def lowered(self, workload: str) -> None:
        """A later order gave replicas up: what was launched before says nothing of the lead time any more."""
        self._launched.pop(workload, None)

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Read every target once; one that cannot be read is silent, not zero."""
        for workload, target in self._targets().items():
            try:
                status = await self._api.status(target)
            except NotApplied as error:
                if workload not in self._silent:
                    log.warning("target_not_read", workload=workload, reason=error.detail)
                self._silent.add(workload)
                continue
            self._silent.discard(workload)
            now_ms = self._clock()
            pending = max(0, status.desired - status.ready)
            draining = max(0, status.existing - status.desired)
            self._facts(workload, FleetFacts(now_ms, status.ready, pending, draining, status.desired))
            self._ready(workload, status.ready, now_ms)
            if workload in self._gpus_per_replica and self._generations.get(workload) != status.generation:
                self._generations[workload] = status.generation
                await self._compare_gpus(workload, target)

    async def _compare_gpus(self, workload: str, target: Target) -> None:
        """Report another number of GPUs than is declared, each difference once."""
        try:
            told = gpu_difference(target, self._gpus_per_replica[workload], await self._api.gpus(target))
        except NotApplied as error:
            told = f"the GPUs of a replica cannot be read: {error.detail}"
        if told is not None and told != self._reported.get(workload):
            log.warning("gpus_per_replica", workload=workload, reason=told)
            self._reported[workload] = told

    def _ready(self, workload: str, ready: int, now_ms: int) -> None:
        launched = self._launched.get(workload)
        if launched is None:
            return
        command_id, replicas, at_ms = launched
        if ready >= replicas:
            self._outcome(workload, OutcomeFact(now_ms, command_id, "ready", ready, (now_ms - at_ms) / 1000))
        if ready >= replicas or now_ms - at_ms > _READY_DEADLINE_MS:
            del self._launched[workload]


# How loaded each pod is, asked of Prometheus, so that scaling down gives up the idle ones.


DEFAULT_QUERY = (
    'sum by (pod) (vllm:num_requests_running{{namespace="{namespace}"}} + '
    'vllm:num_requests_waiting{{namespace="{namespace}"}})'
)


class PrometheusLoads:
    """Runs one instant query per scale-down; each series must have the label `pod`.

    Args:
        server: such as http://prometheus:9090.
        query: PromQL; `{namespace}` and `{name}` stand for the target's, `{{` and `}}` for braces.

    Raises:
        HarmonyError: the address is none (exit code 2).
    """

    def __init__(self, server: str, query: str = DEFAULT_QUERY, timeout_s: float = 5.0) -> None:
        split_url(server, "address of a Prometheus server: write http://host:port")
        self._url = server.rstrip("/") + "/api/v1/query"
        self._query = query
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __call__(self, target: Target, pods: Iterable[str]) -> Mapping[str, float]:
        """Pod -> load. Raises NotApplied when Prometheus does not say."""
        try:
            query = self._query.format(namespace=target.namespace, name=target.name)
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.get(self._url, params={"query": query}, allow_redirects=False) as response,
            ):
                body = orjson.loads(await response.read())
            loads = {r["metric"]["pod"]: float(r["value"][1]) for r in body["data"]["result"]}
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
            reason = printable(str(error), 120)
            raise NotApplied(f"Prometheus did not answer the query of loads: {type(error).__name__} {reason}") from None
        pod_names = set(pods)
        return {pod: load for pod, load in loads.items() if pod in pod_names and math.isfinite(load) and load >= 0}
