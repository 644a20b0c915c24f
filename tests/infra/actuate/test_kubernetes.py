"""The Kubernetes actuator over real HTTP against a pretended API server with the real one's conflict rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from agents.actuation.guard import ApplyGuard
from agents.records import Target
from infra.actuate.actuator import NotApplied
from infra.actuate.controller import CommandController
from infra.actuate.kubernetes import COST, FactsReader, Kubernetes, PrometheusLoads, other_harmonies, rivals
from infra.actuate.kubernetes_api import Access, KubernetesApi, find_access
from infra.console.errors import HarmonyError
from streams.records.facts import FleetFacts, OutcomeFact
from tests.agents.actuation.test_apply_guard import TARGET, command
from tests.infra.actuate.api_server import ApiServer, serving
from tests.infra.actuate.loopback import as_json, started

NOW = 1_000
LWS = Target("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "prod", "big")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving() as made:
        yield made


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(Access(server.url)) as made:
        yield made


def controller(api: KubernetesApi, **options: object) -> CommandController:
    return CommandController(Kubernetes(api, **options), ApplyGuard(), lambda: NOW)  # type: ignore[arg-type]


async def test_replicas_are_patched_on_the_scale_subresource_with_the_version_read(
    server: ApiServer, api: KubernetesApi
) -> None:
    event = await controller(api).handle(command(1))
    assert (event.status, server.replicas("prod", "w")) == ("applied", 5)
    assert [(method, path) for method, path, _ in server.requests] == [
        ("GET", "/apis/apps/v1/namespaces/prod/deployments/w/scale"),
        ("GET", "/apis/apps/v1/namespaces/prod/deployments/w"),
        ("PATCH", "/apis/apps/v1/namespaces/prod/deployments/w/scale?fieldManager=harmony"),
    ]
    assert server.requests[2][2] == {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 5}}


async def test_a_dry_run_lets_the_server_check_and_changes_nothing(server: ApiServer) -> None:
    async with KubernetesApi(Access(server.url), dry_run=True) as api:
        event = await controller(api).handle(command(1))
    assert event.status == "applied"
    assert server.requests[2][1].endswith("?fieldManager=harmony&dryRun=All")
    assert server.replicas("prod", "w") == 3
    server.deny.add("PATCH")
    async with KubernetesApi(Access(server.url), dry_run=True) as api:
        event = await controller(api).handle(command(1))
    assert (event.status, event.reason) == ("refused", "refused_by_target"), "missing rights show before acting"
    assert "rbac.yaml" in event.detail


async def test_another_writer_between_look_and_write_is_seen(server: ApiServer, api: KubernetesApi) -> None:
    server.before_patch.append(lambda: server.set("prod", "w", 8))
    event = await controller(api).handle(command(1))
    assert (event.status, event.reason, server.replicas("prod", "w")) == ("refused", "changed_by_others", 8)


async def test_a_writer_who_left_the_count_alone_does_not_stop_us(server: ApiServer, api: KubernetesApi) -> None:
    server.before_patch.append(lambda: server.set("prod", "w", 3))  # a rollout, say
    event = await controller(api).handle(command(1))
    assert (event.status, server.replicas("prod", "w")) == ("applied", 5)


@pytest.mark.parametrize(
    ("target", "plural"),
    [
        (Target("apps/v1", "StatefulSet", "prod", "s"), "statefulsets"),
        (LWS, "leaderworkersets"),
        (Target("example.org/v1alpha1", "Chorus", "prod", "c"), "chori"),
    ],
)
async def test_whatever_has_a_scale_subresource_can_be_a_target(
    server: ApiServer, api: KubernetesApi, target: Target, plural: str
) -> None:
    server.add(target.api_version, plural, target.kind, "prod", target.name, 3)
    event = await controller(api).handle(command(1, target=target))
    assert (event.status, server.replicas("prod", target.name)) == ("applied", 5)
    await controller(api).handle(command(2, target=target, expected=5))
    asked = [path for _, path, _ in server.requests if "/namespaces/" not in path]
    assert asked == ([f"/apis/{target.api_version}"] if plural == "chori" else []), (
        "asked for once, and only if unknown"
    )


async def test_zero_replicas_are_a_count_although_the_server_leaves_the_field_out(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.set("prod", "w", 0)
    assert (await api.scale(TARGET)).replicas == 0
    await controller(api).handle(command(1, replicas=2, expected=0))
    assert server.replicas("prod", "w") == 2


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (Target("apps/v1", "Deployment", "prod", "nobody"), "404"),
        (Target("apps/v1", "Deployment", "../../kube-system", "w"), "no name"),
        (Target("apps/v1", "Deployment", "prod", "w/../x?y=z"), "no name"),
        (Target("v1", "Pod", "prod", "w"), "no API group"),
        (Target("example.org/v9", "Ghost", "prod", "w"), "knows no Ghost"),
    ],
)
async def test_a_target_that_is_not_there_is_a_failure_in_words(api: KubernetesApi, target: Target, told: str) -> None:
    event = await controller(api).handle(command(1, target=target))
    assert event.status == "failed"
    assert told in event.detail


@pytest.mark.parametrize("body", [{}, {"spec": []}, {"spec": {"replicas": "x"}}, {"items": [1]}, {"metadata": None}])
async def test_an_answer_of_another_shape_is_a_failure_in_words(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, body: dict[str, object]
) -> None:
    async def answer(*_: object) -> dict[str, object]:
        return body

    monkeypatch.setattr(KubernetesApi, "_call", answer)
    event = await controller(api).handle(command(1))
    assert (event.status, event.reason) == ("failed", "not_observed")
    for read in (api.status(TARGET), api.pods("prod", "a=b")):
        with suppress(NotApplied):
            await read


async def test_a_server_that_is_gone_changes_nothing_and_is_told(server: ApiServer, api: KubernetesApi) -> None:
    await server.stop()
    event = await controller(api).handle(command(1))
    assert (event.status, event.reason) == ("failed", "not_observed")


async def test_the_token_is_read_again_each_time(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    server.token = "one"
    async with KubernetesApi(Access(server.url, token)) as api:
        assert (await api.scale(TARGET)).replicas == 3
        server.token = "two"
        with pytest.raises(NotApplied, match="401"):
            await api.scale(TARGET)
        token.write_text("two\n")
        assert (await api.scale(TARGET)).replicas == 3


def test_outside_a_cluster_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(HarmonyError, match="kubectl proxy"):
        find_access()
    with pytest.raises(HarmonyError, match="no API server"):
        find_access("127.0.0.1:8001")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert find_access().server == "https://[fd00::1]:443"


async def test_an_hpa_on_the_same_target_is_found_and_missing_rights_stop_nothing(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.scalers = [("mine", "Deployment", "w"), ("other", "Deployment", "x"), ("kind", "StatefulSet", "w")]
    assert await rivals(api, [TARGET]) == ["prod/mine on Deployment w"]
    server.deny.add("LIST")
    assert await rivals(api, [TARGET]) == []


async def test_what_another_harmony_set_is_left_to_it_until_it_is_taken_over(server: ApiServer) -> None:
    """Taken over once: when the other one sets the count again, this one leaves it."""
    access = Access(server.url)
    async with (
        KubernetesApi(access, manager="harmony-bbbb") as api,
        KubernetesApi(access, manager="harmony-aaaa") as other,
    ):
        assert (await controller(api).handle(command(1))).status == "applied", "nobody's"
        assert await other_harmonies(api, [TARGET]) == []
        told = await other_harmonies(other, [TARGET])
        assert told == ["another HARMONY (harmony-bbbb) set the replicas of Deployment prod/w at 2026-11-30T10:00:01Z"]
        refused = await controller(other).handle(command(1, replicas=7, expected=5))
        assert (refused.status, refused.detail, server.replicas("prod", "w")) == ("refused", told[0], 5)
        taking = controller(other, take_over=True)
        taken = await taking.handle(command(1, replicas=7, expected=5))
        assert (taken.status, server.replicas("prod", "w")) == ("applied", 7)
        assert (await controller(api).handle(command(2, replicas=4, expected=7))).status == "refused"
        again = controller(api, take_over=True)
        assert (await again.handle(command(2, replicas=4, expected=7))).status == "applied"
        assert (await taking.handle(command(3, replicas=9, expected=4))).status == "refused"
    assert server.thing("prod", "w").writes == [5, 7, 4]


async def test_a_person_and_an_earlier_release_are_no_other_harmony(server: ApiServer, api: KubernetesApi) -> None:
    for name in ("kubectl-scale", "harmony", ""):
        server.thing("prod", "w").owned_by(name)
        assert await other_harmonies(api, [TARGET]) == []
    server.thing("prod", "w").managed = ["not", "of", "this", "shape"]  # type: ignore[list-item]
    assert await other_harmonies(api, [TARGET]) == [], "one that cannot be read stops nothing"


def pods(server: ApiServer, *names: str) -> None:
    server.pods = {name: {"app": "w", "metadata": {"name": name}} for name in names}


async def test_idle_pods_are_marked_to_go_first(server: ApiServer, api: KubernetesApi) -> None:
    pods(server, "busy", "idle", "unknown")

    async def loads(_target: Target, names: Iterable[str]) -> Mapping[str, float]:
        assert set(names) == {"busy", "idle", "unknown"}
        return {"busy": 40.4, "idle": 0.0}

    await controller(api, loads=loads).handle(command(1, replicas=2))
    cost = {name: int(pod["metadata"]["annotations"][COST]) for name, pod in server.pods.items()}
    assert sorted(cost, key=cost.__getitem__) == ["idle", "busy", "unknown"]
    assert server.replicas("prod", "w") == 2


async def test_scaling_up_marks_nobody_and_silent_loads_stop_nothing(server: ApiServer, api: KubernetesApi) -> None:
    pods(server, "p")

    async def silent(_target: Target, _names: Iterable[str]) -> Mapping[str, float]:
        raise NotApplied("Prometheus is away")

    made = controller(api, loads=silent)
    await made.handle(command(1))
    assert "annotations" not in server.pods["p"]["metadata"]
    event = await made.handle(command(2, replicas=2, expected=5))
    assert (event.status, server.replicas("prod", "w")) == ("applied", 2)
    assert "Prometheus is away" in event.detail


async def test_loads_come_from_one_query_by_pod() -> None:
    from aiohttp import web

    asked: list[str] = []

    async def query(request: web.Request) -> web.Response:
        asked.append(request.query["query"])
        series = [({"pod": "a"}, "3"), ({"pod": "b"}, "NaN"), ({"pod": "else"}, "1")]
        return as_json(200, {"data": {"result": [{"metric": m, "value": [0, v]} for m, v in series]}})

    app = web.Application()
    app.router.add_get("/api/v1/query", query)
    runner, url = await started(app)
    try:
        assert await PrometheusLoads(url)(TARGET, ["a", "b"]) == {"a": 3.0}
        assert 'namespace="prod"' in asked[0]
        for bad in ("up{pod", "{nobody}"):
            with pytest.raises(NotApplied, match="Prometheus"):
                await PrometheusLoads(url, bad)(TARGET, ["a"])
    finally:
        await runner.cleanup()
    with pytest.raises(NotApplied, match="Prometheus"):
        await PrometheusLoads(url)(TARGET, ["a"])


async def test_facts_and_lead_times_are_told_and_an_unreadable_target_is_silent(
    server: ApiServer, api: KubernetesApi
) -> None:
    told: list[tuple[str, FleetFacts]] = []
    outcomes: list[tuple[str, OutcomeFact]] = []
    now = [10_000]
    targets = {"w": TARGET, "x": Target("apps/v1", "Deployment", "prod", "x")}
    reader = FactsReader(api, lambda: targets, lambda: now[0], lambda *t: told.append(t), lambda *o: outcomes.append(o))
    await reader.look()
    assert told == [("w", FleetFacts(10_000, 3, 0, 0, 3))], "what cannot be read has no facts, least of all zeros"
    thing = server.thing("prod", "w")
    thing.replicas = 5
    reader.launched("w", "c5", 5, 12_000)
    now[0] = 20_000
    thing.ready, thing.existing = 4, 5
    await reader.look()
    assert told[-1] == ("w", FleetFacts(20_000, 4, 1, 0, 5))
    assert outcomes == []
    now[0], thing.ready = 57_000, 5
    await reader.look()
    await reader.look()
    assert outcomes == [("w", OutcomeFact(57_000, "c5", "ready", 5, 45.0))], "once"
    thing.replicas, thing.existing = 2, 5
    await reader.look()
    assert told[-1][1].draining == 3
