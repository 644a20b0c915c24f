"""The few calls of the Kubernetes API that scaling needs, in plain HTTP: `/scale`, the object itself, its pods.

Inside a cluster the service account's files say where and who; outside, `kubectl proxy` is the shortest way.
"""

from __future__ import annotations

import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
# Begins the name under which each HARMONY writes (Kubernetes documentation, "Server-Side Apply", field management).
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


class Owner(NamedTuple):
    """Who set the count of an object last, and when (RFC 3339); empty where the server does not say."""

    manager: str
    since: str


class Status(NamedTuple):
    """What the object says of itself; `ready` are pods (of a LeaderWorkerSet: groups) that serve.

    Attributes:
        generation: grows with every change of the object's specification.
    """

    desired: int
    ready: int
    existing: int
    generation: int = 0


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
        manager: under which name the server remembers our writes.

    Raises:
        HarmonyError: the CA file cannot be read.
    """

    def __init__(
        self, access: Access, *, dry_run: bool = False, manager: str = FIELD_MANAGER, timeout_s: float = 10.0
    ) -> None:
        self._access, self._dry_run, self.manager = access, dry_run, manager
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
            existing, generation = int(status.get("replicas") or 0), int(body["metadata"].get("generation") or 0)
            return Status(int(spec.get("replicas", 1)), int(status.get("readyReplicas") or 0), existing, generation)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotApplied("the object has no replica counts where they should be", sure=True) from None

    async def owner(self, target: Target) -> Owner | None:
        """Who set the count last, as the object's managed fields say; None where nobody did. Raises NotApplied."""
        body = await self._call("GET", await self._path(target))
        try:
            owners = [
                Owner(str(entry.get("manager") or ""), str(entry.get("time") or ""))
                for entry in body["metadata"].get("managedFields") or []
                if "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
            ]
        except (KeyError, TypeError, AttributeError):
            raise NotApplied("the object's managed fields have another shape", sure=True) from None
        return max(owners, key=lambda owner: owner.since, default=None)

    async def gpus(self, target: Target) -> dict[str, int]:
        """GPUs that one replica asks for, by resource or device class; empty where it asks for none.

        Raises:
            NotApplied: the target or a template of its resource claims cannot be read, or names no number.
        """
        body = await self._call("GET", await self._path(target))
        try:
            pods = list(pods_of_replica(body["spec"]))
            templates = sorted({name for pod in pods for name in claim_templates(pod)})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotApplied("the object has no pod template where it should be", sure=True) from None
        claims = {name: await self._claim(target.namespace, name) for name in templates}
        try:
            return dict(sum((gpus_of_pod(pod, claims) for pod in pods), Counter[str]()))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotApplied("the containers ask for GPUs in no whole number", sure=True) from None

    async def _claim(self, namespace: str, template: str) -> Counter[str]:
        """GPUs of one claim of a template, by device class."""
        group = await self._call("GET", f"/apis/{_CLAIMS}")
        try:
            version = str(group["preferredVersion"]["groupVersion"])
        except (KeyError, TypeError):
            raise NotApplied(f"the cluster does not say which version of {_CLAIMS} it has", sure=True) from None
        path = f"/apis/{version}/namespaces/{_name(namespace)}/resourceclaimtemplates/{_name(template)}"
        body = await self._call("GET", path)
        try:
            return gpus_of_claim(body["spec"]["spec"]["devices"]["requests"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            why = f"the requests of resource claim template {template} name no number of devices"
            raise NotApplied(why, sure=True) from None

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
            path += f"?fieldManager={self.manager}" + ("&dryRun=All" if self._dry_run else "")
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


# GPUs of one replica, as its pods ask for them: extended resources, and claims of dynamic resource allocation.
#
# Sources: Kubernetes documentation, "Schedule GPUs", "Init containers" (effective requests), "Dynamic Resource
# Allocation"; NVIDIA's device plug-in for the names of parts of a GPU (MIG); LeaderWorkerSet's API.


_CLAIMS = "resource.k8s.io"
_GPU = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-\d+g\.\d+gb[\w.+-]*)|amd\.com/gpu")
_GPU_CLASS = re.compile(r"(^|[.-])(gpu|mig)([.-]|$)")

Json = Mapping[str, Any]


def pods_of_replica(spec: Json) -> Iterator[Json]:
    """The specification of each pod of one replica: one, or of a LeaderWorkerSet a leader and its workers."""
    group = spec.get("leaderWorkerTemplate")
    if group is not None:
        worker = group["workerTemplate"]
        yield (group.get("leaderTemplate") or worker)["spec"]
        for _ in range(int(group.get("size") or 1) - 1):
            yield worker["spec"]
    elif "template" in spec:
        yield spec["template"]["spec"]


def claim_templates(pod: Json) -> list[str]:
    """The templates of which each pod gets a claim of its own; other claims are shared by all pods."""
    claims = pod.get("resourceClaims") or []
    return [str(c["resourceClaimTemplateName"]) for c in claims if c.get("resourceClaimTemplateName")]


def gpus_of_pod(pod: Json, claims: Mapping[str, Counter[str]]) -> Counter[str]:
    """GPUs of one pod, by resource or device class.

    Args:
        claims: of each template that the pod names, the GPUs of one claim.

    >>> gpus_of_pod({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}}}]}, {})
    Counter({'nvidia.com/gpu': 2})
    """
    first = pod.get("initContainers") or []
    beside = [c for c in first if c.get("restartPolicy") == "Always"]
    asked = sum(map(_asked_by, [*(pod.get("containers") or []), *beside]), Counter[str]())
    for container in first:
        asked |= _asked_by(container)  # it runs alone, before the others
    return sum((claims[name] for name in claim_templates(pod)), asked)


def _asked_by(container: Json) -> Counter[str]:
    asked: Counter[str] = Counter()
    for part in ("requests", "limits"):
        quantities = (container.get("resources") or {}).get(part) or {}
        asked |= Counter({name: int(number) for name, number in quantities.items() if _GPU.fullmatch(name)})
    return asked


def gpus_of_claim(requests: Sequence[Json]) -> Counter[str]:
    """GPUs of one claim, by device class.

    Raises:
        ValueError: all devices of a node are asked for, or one of several numbers.
    """
    asked: Counter[str] = Counter()
    for request in requests:
        # From version v1beta2 on, one request is `exactly` this or the first available of several.
        ways = request.get("firstAvailable") or [request.get("exactly") or request]
        gpus = [(str(way["deviceClassName"]), _count(way)) for way in ways if _GPU_CLASS.search(way["deviceClassName"])]
        if len({count for _, count in gpus}) > 1:
            raise ValueError("one of several numbers")
        asked.update(dict(gpus[:1]))
    return asked


def _count(request: Json) -> int:
    if request.get("allocationMode", "ExactCount") != "ExactCount":
        raise ValueError("all devices of a node")
    return int(request.get("count") or 1)
