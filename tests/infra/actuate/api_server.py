"""A pretended kube-apiserver: `/scale` with resource versions, as the real one answers for any kind of resource.

What it keeps of the real one: a merge patch that names a resource version other than the stored one is a Conflict
(409); one without a version is not checked; every write gives a new version; negative counts are Invalid (422);
`dryRun=All` checks and stores nothing; unknown objects and resources are NotFound (404); errors are `Status` objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.infra.actuate.loopback import as_json, started


@dataclass
class Thing:
    kind: str
    replicas: int
    ready: int = 0
    existing: int = 0
    version: int = 1
    spec: dict[str, Any] = field(default_factory=dict)
    generation: int = 1
    writes: list[int] = field(default_factory=list)
    managed: list[dict[str, Any]] = field(default_factory=list)

    def owned_by(self, manager: str) -> None:
        """Who writes another count is from then on the only one that owns it."""
        owned = {"f:spec": {"f:replicas": {}}}
        at = f"2026-11-30T10:00:{self.version:02d}Z"
        self.managed = [
            {"manager": manager, "operation": "Update", "subresource": "scale", "time": at, "fieldsV1": owned}
        ]


class ApiServer:
    def __init__(self) -> None:
        self.things: dict[tuple[str, str, str, str], Thing] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.deny: set[str] = set()
        self.before_patch: list[Any] = []
        self.token: str | None = None
        self.scalers: list[tuple[str, str, str]] = []
        self.claim_templates: dict[str, dict[str, Any]] = {}
        self.claims_version = "v1"

    def add(self, version: str, plural: str, kind: str, namespace: str, name: str, replicas: int) -> Thing:
        thing = Thing(kind, replicas, ready=replicas, existing=replicas)
        self.things[version, plural, namespace, name] = thing
        return thing

    def thing(self, namespace: str, name: str) -> Thing:
        return next(t for (_, _, ns, n), t in self.things.items() if (ns, n) == (namespace, name))

    def replicas(self, namespace: str, name: str) -> int:
        return self.thing(namespace, name).replicas

    def set(self, namespace: str, name: str, replicas: int) -> None:
        """Somebody else writes."""
        thing = self.thing(namespace, name)
        thing.replicas = replicas
        thing.version += 1
        thing.owned_by("kubectl-scale")

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/apis/resource.k8s.io", self._claims_group)
        app.router.add_get(
            "/apis/resource.k8s.io/{version}/namespaces/{ns}/resourceclaimtemplates/{name}", self._claim_template
        )
        app.router.add_route("*", "/apis/{group}/{version}", self._listed)
        app.router.add_route("*", "/apis/{group}/{version}/namespaces/{ns}/{plural}/{name}", self._object)
        app.router.add_route("*", "/apis/{group}/{version}/namespaces/{ns}/{plural}/{name}/scale", self._scale)
        app.router.add_get("/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers", self._scalers)
        app.router.add_get("/api/v1/namespaces/{ns}/pods", self._pods)
        app.router.add_patch("/api/v1/namespaces/{ns}/pods/{name}", self._patch_pod)
        self._runner, self.url = await started(app)

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _listed(self, request: web.Request) -> web.Response:
        version = f"{request.match_info['group']}/{request.match_info['version']}"
        self.requests.append((request.method, request.path_qs, None))
        resources = [
            {"name": name, "kind": kind, "namespaced": True}
            for (v, plural, _, _), thing in self.things.items()
            if v == version
            for name, kind in ((plural, thing.kind), (f"{plural}/scale", "Scale"), (f"{plural}/status", thing.kind))
        ]
        return as_json(200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources})

    async def _object(self, request: web.Request) -> web.Response:
        thing = self._find(request)
        if isinstance(thing, web.Response):
            return thing
        status = {"replicas": thing.existing, "readyReplicas": thing.ready}
        return as_json(
            200,
            {
                "kind": thing.kind,
                "metadata": {
                    "resourceVersion": str(thing.version),
                    "generation": thing.generation,
                    "managedFields": thing.managed,
                },
                "spec": {"replicas": thing.replicas, **thing.spec},
                "status": {k: v for k, v in status.items() if v},
            },
        )

    async def _scale(self, request: web.Request) -> web.Response:
        thing = self._find(request)
        if isinstance(thing, web.Response):
            return thing
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                return _status(415, "UnsupportedMediaType")
            body = orjson.loads(await request.read())
            self.requests[-1] = ("PATCH", request.path_qs, body)
            while self.before_patch:
                self.before_patch.pop()()
            wanted = body.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != str(thing.version):
                return _status(409, "Conflict", "the object has been modified; please apply your changes to the latest")
            if body["spec"]["replicas"] < 0:
                return _status(422, "Invalid", "spec.replicas: must be greater than or equal to 0")
            if request.query.get("dryRun") != "All":
                if thing.replicas != body["spec"]["replicas"]:
                    thing.owned_by(request.query.get("fieldManager", "unknown"))
                thing.replicas = body["spec"]["replicas"]
                thing.writes.append(thing.replicas)
                thing.version += 1
        spec = {"replicas": thing.replicas} if thing.replicas else {}
        return as_json(
            200,
            {
                "kind": "Scale",
                "apiVersion": "autoscaling/v1",
                "metadata": {"name": request.match_info["name"], "resourceVersion": str(thing.version)},
                "spec": spec,
                "status": {"replicas": thing.existing, "selector": f"app={request.match_info['name']}"},
            },
        )

    async def _scalers(self, request: web.Request) -> web.Response:
        if "LIST" in self.deny:
            return _status(403, "Forbidden")
        items = [
            {"metadata": {"name": name}, "spec": {"scaleTargetRef": {"kind": kind, "name": target}}}
            for name, kind, target in self.scalers
        ]
        return as_json(200, {"kind": "HorizontalPodAutoscalerList", "items": items})

    async def _claims_group(self, request: web.Request) -> web.Response:
        version = {"groupVersion": f"resource.k8s.io/{self.claims_version}", "version": self.claims_version}
        self.requests.append((request.method, request.path_qs, None))
        return as_json(200, {"kind": "APIGroup", "name": "resource.k8s.io", "preferredVersion": version})

    async def _claim_template(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path_qs, None))
        if "CLAIMS" in self.deny:
            return _status(403, "Forbidden")
        found = self.claim_templates.get(request.match_info["name"])
        if found is None or request.match_info["version"] != self.claims_version:
            return _status(404, "NotFound")
        return as_json(200, {"kind": "ResourceClaimTemplate", "spec": {"spec": found}})

    async def _pods(self, request: web.Request) -> web.Response:
        app = request.query["labelSelector"].removeprefix("app=")
        items = [p for p in self.pods.values() if p["app"] == app]
        return as_json(200, {"kind": "PodList", "items": [{"metadata": p["metadata"]} for p in items]})

    async def _patch_pod(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        pod = self.pods[request.match_info["name"]]
        pod["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return as_json(200, {"metadata": pod["metadata"]})

    def _find(self, request: web.Request) -> Thing | web.Response:
        self.requests.append((request.method, request.path_qs, None))
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if request.method in self.deny:
            return _status(403, "Forbidden", 'User "x" cannot do that')
        m = request.match_info
        found = self.things.get((f"{m['group']}/{m['version']}", m["plural"], m["ns"], m["name"]))
        return found if found is not None else _status(404, "NotFound", f'{m["plural"]} "{m["name"]}" not found')


def _status(code: int, reason: str, message: str = "") -> web.Response:
    return as_json(code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code})


@asynccontextmanager
async def serving() -> AsyncIterator[ApiServer]:
    """A server with the Deployment `w` of three replicas in the namespace `prod`."""
    made = ApiServer()
    made.add("apps/v1", "deployments", "Deployment", "prod", "w", 3)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
