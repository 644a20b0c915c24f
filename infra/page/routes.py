"""The page's addresses on the worker's web server: files, JSON, events; GET only, this machine only without a token."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web

from infra.page.live import LiveFleet
from infra.probes import names_loopback, sends_token
from infra.web_tls import shows_certificate

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
            app.router.add_get(f"/api/{name}", self._guarded(_telling(tell)), allow_head=False)
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


def _telling(tell: Callable[[], object]) -> Handler:
    async def told(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=orjson.dumps(tell()), content_type="application/json")

    return told


def _error(status: int, error: str, hint: str) -> web.Response:
    body = orjson.dumps({"error": error, "hint": hint}) + b"\n"
    return web.Response(status=status, body=body, content_type="application/json")
