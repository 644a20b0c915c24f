"""The few calls of the Kubernetes API that scaling needs, in plain HTTP: `/scale`, the object's status, its pods.

Inside a cluster the service account's files say where and who; outside, `kubectl proxy` is the shortest way.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import aiohttp
import orjson

from agents.records import Target
from infra.actuate.actuator import NotApplied, Overtaken
from infra.console.errors import HarmonyError
from infra.console.text import printable
from infra.console.web import split_url

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FIELD_MANAGER = "harmony"
_MERGE = "application/merge-patch+json"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_GROUP_VERSION = re.compile(r"[a-z0-9][-a-z0-9.]*/v[a-z0-9]+")
# Kinds whose plural needs no question; others are looked up.
_PLURALS = {
    ("apps/v1", "Deployment"): "deployments",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "ReplicaSet"): "replicasets",
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): "leaderworkersets",
}


class Access(NamedTuple):
    """Where the API server is and who we are.

    Attributes:
        server: https address, or http on this machine.
        token_file: read again at each request, for the kubelet replaces it.
    """

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None


class Scale(NamedTuple):
    """The scale subresource: the count that is set, the version it was read at, and which pods belong to it."""

    replicas: int
    version: str
    selector: str


class Status(NamedTuple):
    """What the object says of itself; `ready` are pods (of a LeaderWorkerSet: groups) that serve."""

    desired: int
    ready: int
    existing: int


def find_access(server: str | None = None, token_file: Path | None = None, ca_file: Path | None = None) -> Access:
    """The given address, or the cluster that this pod runs in.

    Raises:
        HarmonyError: neither (exit code 2).
    """
    if server:
        split_url(server, "API server: write https://host:port")
        return Access(server.rstrip("/"), token_file, ca_file)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise HarmonyError(
            "This is no pod of a cluster. Run `kubectl proxy` and give --server http://127.0.0.1:8001, or give "
            "--server with --token-file and --ca-file.",
            2,
        )
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


class KubernetesApi:
    """A client of one API server; use as an async context manager.

    Args:
        dry_run: let the server check every write and make none.

    Raises:
        HarmonyError: the CA file cannot be read.
    """

    def __init__(self, access: Access, *, dry_run: bool = False, timeout_s: float = 10.0) -> None:
        self._access, self._dry_run = access, dry_run
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._plurals = dict(_PLURALS)
        self._session: aiohttp.ClientSession | None = None
        try:
            self._tls = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True
        except OSError as error:
            raise HarmonyError(f"Cannot read {access.ca_file}: {error.strerror or error}.", 2) from error

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def scale(self, target: Target) -> Scale:
        """Raises NotApplied when it cannot be read."""
        body = await self._call("GET", await self._path(target) + "/scale")
        try:
            replicas = body["spec"].get("replicas", 0)
            version = body["metadata"]["resourceVersion"]
            return Scale(int(replicas), str(version), str(body.get("status", {}).get("selector", "")))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotApplied("the scale subresource is not one of autoscaling/v1", sure=True) from None

    async def set_scale(self, target: Target, replicas: int, version: str) -> None:
        """Set the count if nobody wrote since `version`.

        Raises:
            Overtaken: somebody did.
            NotApplied: refused, or not known to be done.
        """
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        await self._call("PATCH", await self._path(target) + "/scale", body)

    async def status(self, target: Target) -> Status:
        """Raises NotApplied when it cannot be read."""
        body = await self._call("GET", await self._path(target))
        try:
            spec, status = body.get("spec") or {}, body.get("status") or {}
            existing = int(status.get("replicas") or 0)
            return Status(int(spec.get("replicas", 1)), int(status.get("readyReplicas") or 0), existing)
        except (TypeError, ValueError, AttributeError):
            raise NotApplied("the object has no replica counts where they should be", sure=True) from None

    async def pods(self, namespace: str, selector: str) -> list[tuple[str, dict[str, str]]]:
        """Name and annotations of the pods that a selector matches. Raises NotApplied."""
        path = f"/api/v1/namespaces/{_name(namespace)}/pods?labelSelector={quote(selector, safe='')}&limit=1000"
        body = await self._call("GET", path)
        try:
            return [(p["metadata"]["name"], p["metadata"].get("annotations") or {}) for p in body.get("items") or []]
        except (KeyError, TypeError, AttributeError):
            raise NotApplied("the answer is no list of pods", sure=True) from None

    async def annotate_pod(self, namespace: str, pod: str, annotations: Mapping[str, str]) -> None:
        """Raises NotApplied."""
        path = f"/api/v1/namespaces/{_name(namespace)}/pods/{_name(pod)}"
        await self._call("PATCH", path, {"metadata": {"annotations": dict(annotations)}})

    async def scalers(self, namespace: str) -> list[tuple[str, str, str]]:
        """Name, target kind and target name of the namespace's HPAs. Raises NotApplied."""
        body = await self._call("GET", f"/apis/autoscaling/v2/namespaces/{_name(namespace)}/horizontalpodautoscalers")
        try:
            items = [(i["metadata"]["name"], i["spec"]["scaleTargetRef"]) for i in body.get("items") or []]
            return [(name, str(ref["kind"]), str(ref["name"])) for name, ref in items]
        except (KeyError, TypeError, AttributeError):
            raise NotApplied("the answer is no list of HPAs", sure=True) from None

    async def _path(self, target: Target) -> str:
        version, kind = target.api_version, target.kind
        plural = self._plurals.get((version, kind))
        if plural is None:
            plural = self._plurals[version, kind] = await self._plural(version, kind)
        return f"/apis/{version}/namespaces/{_name(target.namespace)}/{plural}/{_name(target.name)}"

    async def _plural(self, version: str, kind: str) -> str:
        """Ask the server which resource is of this kind, and whether it can be scaled."""
        if not _GROUP_VERSION.fullmatch(version):
            raise NotApplied(f"{printable(version, 80)!r} is no API group and version", sure=True)
        listed = (await self._call("GET", f"/apis/{version}")).get("resources") or []
        kinds = {str(r.get("name")): r.get("kind") for r in listed if isinstance(r, dict)}
        for name, resource_kind in kinds.items():
            if resource_kind == kind and "/" not in name:
                if f"{name}/scale" in kinds:
                    return name
                raise NotApplied(f"{kind} of {version} has no scale subresource", sure=True)
        raise NotApplied(f"the cluster knows no {printable(kind, 80)} of {version}", sure=True)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert self._session is not None, "use it as a context manager"
        headers = {"Accept": "application/json", "User-Agent": "harmony-actuate"}
        data = None
        if body is not None:
            headers["Content-Type"] = _MERGE
            data = orjson.dumps(body)
            path += f"?fieldManager={FIELD_MANAGER}" + ("&dryRun=All" if self._dry_run else "")
        url = self._access.server + path
        try:
            if self._access.token_file is not None:
                headers["Authorization"] = "Bearer " + self._access.token_file.read_text(encoding="ascii").strip()
            async with self._session.request(
                method, url, data=data, headers=headers, ssl=self._tls, allow_redirects=False
            ) as response:
                answer, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # A read changed nothing; of a write that got no answer nobody knows.
            problem = f"{method} {path.split('?')[0]}: {type(error).__name__} {printable(str(error), 120)}"
            raise NotApplied(problem.rstrip(), sure=method == "GET") from None
        if status < 300:
            try:
                return dict(orjson.loads(answer))
            except (ValueError, TypeError):
                raise NotApplied(f"{method} {path.split('?')[0]}: the answer is no JSON object") from None
        raise _refusal(f"{method} {path.split('?')[0]}", status, answer)


def _refusal(what: str, status: int, answer: bytes) -> NotApplied:
    try:
        message = orjson.loads(answer).get("message", "")
    except (ValueError, AttributeError):
        message = answer[:120].decode("utf-8", "replace")
    problem = f"{what}: HTTP {status} {printable(str(message), 160)}".rstrip()
    if status == 409:
        return Overtaken(problem)
    if status in (401, 403):
        problem += " (grant it with infra/deploy/kubernetes/rbac.yaml)"
    return NotApplied(problem, sure=status < 500, refused=400 <= status < 500 and status != 429)


def _name(text: str) -> str:
    """A name of the API, which then is safe in a path."""
    if not _NAME.fullmatch(text):
        raise NotApplied(f"{printable(text, 80)!r} is no name of a Kubernetes object", sure=True, refused=True)
    return text
