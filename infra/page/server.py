"""The page's addresses on the worker's web server: files, JSON, events; GET only, this machine only without a token."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

import orjson
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from infra.console.host import own_version
from infra.observability.catalogue import METRICS, Metric
from infra.observability.health import Health, HealthSnapshot
from infra.observability.metrics import PREFIX
from infra.observability.probes import names_loopback, sends_token, shows_certificate
from infra.page.live import LiveFleet, Peer, PolicyLine, WorkerStatus, announced, peers_of, policies_of
from infra.page.memory import FleetMemory, attainment
from infra.page.tail import LetterMemory, PageTail
from infra.settings.load import Settings

MAX_READERS: Final = 64
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page, ready to send."""

    body: bytes
    packed: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """The page's files by name; they come with the package, nothing is fetched."""
    assets = {}
    for file in Path(__file__).with_name("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            body = file.read_bytes()
            etag = f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"'
            assets[file.name] = Asset(body, gzip.compress(body, 9, mtime=0), _TYPES[suffix], etag)
    return assets


class PageRoutes:
    """Adds the page to a web application.

    Args:
        live: what is shown.
        token: needed where the server is open to the network; browsers send it as the password of Basic.
        certificates: clients may show a certificate in place of the token.
        lists: further answers, by the last part of their address under /api/.
    """

    def __init__(
        self,
        live: LiveFleet,
        token: str | None = None,
        *,
        certificates: bool = False,
        lists: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        self._live, self._token, self._certificates = live, token, certificates
        self._lists = dict(lists or {})
        self._assets = load_assets()
        self._readers: set[asyncio.Task[object]] = set()

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        for path, handler in (
            ("/", self._index),
            ("/static/{name}", self._static),
            ("/api/fleet", self._fleet),
            ("/api/events", self._events),
            ("/api/workloads/{id:.+}", self._workload),
        ):
            app.router.add_get(path, self._guarded(handler), allow_head=False)
        for name, tell in self._lists.items():
            app.router.add_get(f"/api/{name}", self._guarded(_json_handler(tell)), allow_head=False)
        app.on_shutdown.append(self._dismiss)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = self._refusal(request)
            if refusal is not None:
                return refusal
            response = await handler(request)
            if not response.prepared:
                response.headers.update(HEADERS)
            return response

        return guarded

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._certificates and shows_certificate(request):
            return None
        if self._token is None and self._certificates:
            return _error(401, "a client certificate is needed", "import yours into the browser")
        if self._token is None:
            # A name that only points to this machine (DNS rebinding) must not let a web page read our numbers.
            if names_loopback(request.host):
                return None
            return _error(403, "this page answers to 127.0.0.1 or localhost only", "open it under one of these names")
        if sends_token(request, self._token):
            return None
        refusal = _error(401, "a token is needed", "give the metrics token as password, any user name")
        refusal.headers["WWW-Authenticate"] = 'Basic realm="harmony", charset="UTF-8"'
        return refusal

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._asset(request, "index.html")

    async def _static(self, request: web.Request) -> web.StreamResponse:
        return self._asset(request, request.match_info["name"])

    def _asset(self, request: web.Request, name: str) -> web.StreamResponse:
        asset = self._assets.get(name)
        if asset is None:
            return _error(404, "there is no such file", "the page starts at /")
        headers = {"Cache-Control": "no-cache", "ETag": asset.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = asset.content_type
        body = asset.body
        if "gzip" in request.headers.get("Accept-Encoding", "") and len(asset.packed) < len(body):
            body, headers["Content-Encoding"] = asset.packed, "gzip"
        return web.Response(body=body, headers=headers)

    async def _fleet(self, _request: web.Request) -> web.StreamResponse:
        _, body = await self._live.message(None)
        return web.Response(body=body, content_type="application/json")

    async def _workload(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        by_key = self._live.by_key(name[1:]) if name.startswith("~") else None
        body = self._live.workload(by_key if by_key is not None else name)
        if body is None:
            return _error(404, "no decision of this workload is known here", "/api/fleet lists those that are")
        return web.Response(body=body, content_type="application/json")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if len(self._readers) >= MAX_READERS:
            return _error(503, f"{MAX_READERS} pages are open already", "close some, or read /api/fleet")
        task = asyncio.current_task()
        assert task is not None
        self._readers.add(task)
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        try:
            await response.prepare(request)
            last = request.headers.get("Last-Event-ID") or request.query.get("last") or ""
            async for event in self._live.events(last):
                await response.write(event)
        except ConnectionError:
            pass  # the reader has left
        finally:
            self._readers.discard(task)
        return response

    async def _dismiss(self, _app: web.Application) -> None:
        # An open stream would hold the worker's end until the server's time limit.
        for task in list(self._readers):
            task.cancel()


def _json_handler(tell: Callable[[], object]) -> Handler:
    async def respond(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=orjson.dumps(tell()), content_type="application/json")

    return respond


def _error(status: int, error: str, hint: str) -> web.Response:
    body = orjson.dumps({"error": error, "hint": hint}) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json")


# The pipeline of this worker, for the page: its checks, and the few numbers that say whether records flow.


# Counters and gauges that tell of the way from a sample to a command; histograms by their mean.
_FIGURE_NAMES = (
    "lag_records",
    "samples_total",
    "dead_letters_total",
    "pages_total",
    "slots_total",
    "source_silent",
    "stage_seconds",
    "telemetry_to_command_seconds",
    "plan_seconds",
    "forecasts_total",
    "refusals_total",
    "commands_total",
    "plugin_calls_total",
    "kafka_errors_total",
)
_METRICS = {metric.name: metric for metric in METRICS}


def health_view(health: HealthSnapshot, registry: CollectorRegistry) -> dict[str, Any]:
    """Checks as `/readyz` has them, and figures since the worker's start; series at 0 are left out but for lags."""
    return {
        "live": health.live,
        "ready": health.ready,
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail, "required": c.required} for c in health.checks],
        "figures": [figure for name in _FIGURE_NAMES for figure in _figures(_METRICS[name], registry)],
    }


def _figures(metric: Metric, registry: CollectorRegistry) -> list[dict[str, Any]]:
    family = PREFIX + metric.name
    sums: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for collected in registry.collect():
        if collected.name in (family, family.removesuffix("_total")):
            for sample in collected.samples:
                if "le" not in sample.labels:
                    part = sample.name.removeprefix(family).lstrip("_") or "value"
                    sums.setdefault(tuple(sorted(sample.labels.items())), {})[part] = sample.value
    figures = []
    for labels, parts in sorted(sums.items()):
        if metric.kind == "histogram":
            count = parts.get("count", 0.0)
            value, unit = (parts.get("sum", 0.0) / count if count else None), "s, mean"
        else:
            value, unit = parts.get("value", parts.get("total")), ""
        if value or metric.name == "lag_records":
            labels_text = ", ".join(text for _, text in labels)
            figures.append({"name": metric.name, "of": labels_text, "value": value, "unit": unit, "help": metric.help})
    return figures


# The settings in force, flat and without secrets, for the page.


# What a plug-in is given may be anything, secrets included.
_KEYS_ONLY = "advanced.plugins.options."
_HIDDEN = "(set)"


def settings_view(settings: Settings) -> dict[str, Any]:
    """Every key with its value as text, and whether it differs from the default; secrets are starred out."""
    changed = {key for key, _ in _flat(settings.model_dump(mode="json", by_alias=True, exclude_defaults=True))}
    rows = [
        {"key": key, "value": _HIDDEN if key.startswith(_KEYS_ONLY) else _text(value), "changed": key in changed}
        for key, value in _flat(settings.model_dump(mode="json", by_alias=True))
    ]
    return {"policy": settings.policy.fingerprint(), "settings": rows}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{prefix}{name}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{key}.")
        elif isinstance(inner, list) and inner and all(isinstance(item, dict) for item in inner):
            for at, item in enumerate(inner):
                yield from _flat(item, f"{key}[{item.get('id') or item.get('name') or at}].")
        else:
            yield key, inner


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Puts the page together for a worker: memory, reader of the topics, routes, and word to the other workers.


_PEERS_EVERY_S = 5.0
_MAX_NOTICES = 3

log = structlog.get_logger()


class Page:
    """The page of one worker. `add_to` before the server starts, `reading` around its life.

    Args:
        settings: fleet, topics, step, state directory.
        health: what the page says of this worker.
        role: stages of this worker.
        instance: its name.
        client_options: bootstrap_servers and security of an aiokafka client.
        token: as of the probes.
        registry: of this worker's metrics.
        busy: as of `PageTail`.
    """

    def __init__(
        self,
        settings: Settings,
        health: Health,
        *,
        role: str,
        instance: str,
        client_options: Mapping[str, Any],
        token: str | None = None,
        registry: CollectorRegistry | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._health = settings, health
        self._role, self._instance = role, instance
        self._topics = f"{client_options['bootstrap_servers']} {settings.topics.prefix}"
        self._own: Peer | None = None
        self._peers: list[Peer] = []
        self._policies: list[PolicyLine] = []
        self._peers_read_s = float("-inf")
        hold_ms = round(settings.policy.guards.stabilization_down_s * 1000)
        self._memory = FleetMemory(settings.topics, settings.stream.step_ms, hold_ms=hold_ms)
        self._letters = LetterMemory()
        self._tail = PageTail(self._memory, settings.topics, client_options, self._letters, busy)
        figures = registry or CollectorRegistry()
        self._routes = PageRoutes(
            LiveFleet(self._memory, self.worker),
            token,
            certificates=settings.worker.web_client_cafile is not None,
            lists={
                "dead-letters": self._letters.to_dict,
                "health": lambda: health_view(self._health.snapshot(monotonic()), figures),
                "settings": cache(partial(settings_view, settings)),
            },
        )

    def add_to(self, app: web.Application) -> None:
        """Register the page's routes."""
        self._routes.add_to(app)

    @asynccontextmanager
    async def reading(self, url: str) -> AsyncIterator[None]:
        """Follow the topics, and be known to the other workers of this host under `url`, while the block runs."""
        with announced(self._settings.state_dir, url, self._role, self._instance, self._topics) as self._own:
            task = asyncio.create_task(self._tail.run())
            task.add_done_callback(self._ended)
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def attainment(self, workload: str) -> float | None:
        """Share of a workload's requests within the SLO over the stored steps; None: not known."""
        history = self._memory.get(workload)
        window = None if history is None else history.window()
        return None if history is None or window is None else attainment(history.ring.read(*window))

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Showing must never harm deciding: the worker goes on, and the page says that it does not.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tail.state, self._tail.note = "ended", f"{type(error).__name__}: {error}"
            log.error("page_reader_ended", reason=self._tail.note)

    def worker(self) -> WorkerStatus:
        """This worker now."""
        now_s = monotonic()
        if self._own is not None and now_s - self._peers_read_s > _PEERS_EVERY_S:
            self._peers, self._peers_read_s = peers_of(self._settings.state_dir, self._own), now_s
            self._policies = policies_of(self._settings.state_dir)
        health = self._health.snapshot(now_s)
        problems = [health.live_reason] if not health.live else []
        problems += [f"{c.name}: {c.detail or 'not ok'}" for c in health.checks if not c.ok]
        if not any(c.name == "telemetry_usable" for c in health.checks):  # of other workers
            found = self._letters.notices(round(time() * 1000))
            problems += [notice.sentence() for notice in found[:_MAX_NOTICES]]
        return WorkerStatus(
            fleet=self._settings.fleet,
            role=self._role,
            instance=self._instance,
            version=own_version(),
            state=self._tail.state,
            note=self._tail.note,
            ready=health.ready,
            problem="; ".join(problems),
            not_shown=len(self._memory.refused),
            unreadable=self._memory.unreadable,
            letters=len(self._letters),
            peers=self._peers,
            policies=self._policies,
        )
