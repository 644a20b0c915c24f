"""The worker's own HTTP face for probes and scrapes: /livez, /readyz, /healthz and /metrics, GET only."""

from __future__ import annotations

import base64
import errno
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from infra.console.errors import HarmonyError
from infra.observability.connections import ConnectionLimits, Listener, Reason, runner_of, server_of
from infra.observability.health import Health, HealthSnapshot
from infra.settings.schema import WorkerSection

# TLS of a worker's page and metrics, and of whom a certificate makes known.


def web_tls(section: WorkerSection) -> ssl.SSLContext | None:
    """What the worker's web server speaks TLS with; None = plain HTTP.

    Clients may come without a certificate, since a kubelet has none: it reads status codes and nothing else.

    Raises:
        HarmonyError: a file cannot be read, or is no certificate or key.
    """
    if section.web_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.web_certfile, section.web_keyfile)
        if section.web_client_cafile is not None:
            context.load_verify_locations(section.web_client_cafile)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        files = (section.web_certfile, section.web_keyfile, section.web_client_cafile)
        named = error.filename or ", ".join(file for file in files if file)
        raise HarmonyError(
            f"Cannot use {named} of advanced.worker: {error.strerror or error}. Check the path and its rights.", 2
        ) from error
    return context


def shows_certificate(request: web.Request) -> bool:
    """Whether the client has proven to hold a certificate that our authority signed."""
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "harmony",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Scrape(Protocol):
    """What `/metrics` serves; `infra.observability.metrics.PrometheusMeter` is one."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type."""
        ...


def check_closed(host: str, port: int, token: str | None, tls: ssl.SSLContext | None) -> None:
    """See that not everybody could read.

    Raises:
        HarmonyError: the address is not loopback, there is no token, and clients need no certificate (exit code 2).
    """
    if not token and not _is_mutual(tls) and not _is_loopback(host):
        raise HarmonyError(
            f"metrics and probes would be open to the network on {host}:{port}. Bind 127.0.0.1, or set a token "
            "that scrapers send as `Authorization: Bearer <token>` (advanced.worker.metrics_token), or an "
            "authority of their certificates (advanced.worker.web_client_cafile)",
            exit_code=2,
        )


def _is_mutual(tls: ssl.SSLContext | None) -> bool:
    return tls is not None and tls.verify_mode != ssl.CERT_NONE


class ProbeServer:
    """Serves probes and metrics on a socket of its own, on the loop that it watches: a stuck loop does not answer.

    With a token, `/metrics` and the details of the probes need `Authorization: Bearer <token>`, or the token as
    password of Basic; the probes' status codes do not, so that a kubelet needs no secret.

    Args:
        health: what the probes tell.
        scrape: what `/metrics` tells.
        host: address to bind.
        port: 0 = any free one, to be read from `port` after `start`.
        token: needed to bind an address that is not loopback, unless clients show certificates.
        tls: speak TLS; where it asks for clients' certificates, one of them does for the token.
        clock: the monotonic clock that the heartbeats use, in seconds.
        parts: what else is served here (the page); each adds its routes.
        limits: of connections; None = those of this process.
        on_drop: hears of each connection that was closed for another, or for a malformed request, and why.

    Raises:
        HarmonyError: the address is not loopback, there is no token, and clients need no certificate.
    """

    def __init__(
        self,
        health: Health,
        scrape: Scrape,
        *,
        host: str = "127.0.0.1",
        port: int = 9464,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = monotonic,
        parts: Sequence[Callable[[web.Application], None]] = (),
        limits: ConnectionLimits | None = None,
        on_drop: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        check_closed(host, port, token, tls)
        self._mutual = _is_mutual(tls)
        self._tls = tls
        self.host = host
        self.port = port
        self._health = health
        self._scrape = scrape
        self._token = token or None
        self._clock = clock
        self._parts = tuple(parts)
        self._limits, self._on_drop = limits, on_drop
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None

    @property
    def url(self) -> str:
        """Root address, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            HarmonyError: the port is in use, or the address cannot be bound.
        """
        app = web.Application(client_max_size=1024)
        app.on_response_prepare.append(_add_headers)
        for path, handler in (
            ("/livez", self._livez),
            ("/healthz", self._livez),
            ("/readyz", self._readyz),
            ("/metrics", self._metrics),
        ):
            app.router.add_get(path, handler, allow_head=False)
        for add_to in self._parts:
            add_to(app)
        runner = runner_of(app, self._on_drop, shutdown_timeout=1.0)
        await runner.setup()
        listener = Listener(server_of(runner), tls=self._tls, limits=self._limits, on_drop=self._on_drop)
        try:
            _, self.port = await listener.start(self.host, self.port)
        except OSError as error:
            await runner.cleanup()
            raise HarmonyError(_why_not_bound(self.host, self.port, error)) from error
        self._runner, self._listener = runner, listener

    async def stop(self) -> None:
        """Stop serving; may be called twice."""
        runner, self._runner = self._runner, None
        if self._listener is not None:
            await self._listener.stop()
        if runner is not None:
            await runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        snapshot = self._health.snapshot(self._clock())
        body: dict[str, Any] = {"status": "ok" if snapshot.live else "stalled"}
        if self._may_see_details(request):
            body["reason"] = snapshot.live_reason
            body["heartbeat_age_s"] = {stage: round(age, 3) for stage, age in snapshot.heartbeat_age_s.items()}
        return _json(body, ok=snapshot.live)

    async def _readyz(self, request: web.Request) -> web.Response:
        snapshot = self._health.snapshot(self._clock())
        body: dict[str, Any] = {"status": "ready" if snapshot.ready else "not ready"}
        if self._may_see_details(request):
            body["reason"] = _unready_because(snapshot)
            body["checks"] = {c.name: {"ok": c.ok, "detail": c.detail, "required": c.required} for c in snapshot.checks}
        return _json(body, ok=snapshot.ready)

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self._may_see_details(request):
            if self._token is None and self._mutual:
                return web.Response(status=401, text="a client certificate is needed\n")
            if self._token is None:
                return web.Response(status=403, text="ask for this page as 127.0.0.1 or localhost\n")
            return web.Response(status=401, text="a token is needed\n", headers={"WWW-Authenticate": "Bearer"})
        body, content_type = self._scrape.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    def _may_see_details(self, request: web.Request) -> bool:
        if self._mutual and shows_certificate(request):
            return True
        if self._token is None:
            return not self._mutual and may_ask(request, None)
        # The page links to these addresses, and browsers know the token as its password.
        return sends_token(request, self._token)


def _unready_because(snapshot: HealthSnapshot) -> str:
    reasons = [snapshot.live_reason] if not snapshot.live else []
    reasons += [f"{c.name}: {c.detail or 'not ok'}" for c in snapshot.checks if c.required and not c.ok]
    return "; ".join(reasons)


def _json(body: dict[str, Any], *, ok: bool) -> web.Response:
    return web.Response(status=200 if ok else 503, body=orjson.dumps(body) + b"\n", content_type="application/json")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    # The parts may have said more precisely what they allow; the Server header is aiohttp's own by then.
    response.headers.update({n: v for n, v in _HEADERS.items() if n == "Server" or n not in response.headers})


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_ask(request: web.Request, token: str | None) -> bool:
    """Whether it bears the token; without one, whether it asks by a name of loopback."""
    if token is None:
        # A name that only points to this machine (DNS rebinding) must not let a web page read our numbers.
        return names_loopback(request.host)
    sent = request.headers.get("Authorization", "").encode("utf-8", "replace")
    return hmac.compare_digest(sent, f"Bearer {token}".encode())


def sends_token(request: web.Request, token: str) -> bool:
    """Whether it bears the token, or as a browser does has it for a password."""
    return hmac.compare_digest(_sent_token(request).encode("utf-8", "replace"), token.encode())


def _sent_token(request: web.Request) -> str:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return sent.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(sent, validate=True).decode().partition(":")[2]
        except ValueError:  # not base64, or not text
            return ""
    return ""


def names_loopback(host_header: str) -> bool:
    """Whether a request's Host header names this machine's loopback address."""
    try:
        return _is_loopback(urlsplit(f"//{host_header}").hostname or "")
    except ValueError:
        return False


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop the process that holds it, or choose another with --web-port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be bound by this user: choose a metrics port above 1023"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: metrics cannot be served there"
    return f"metrics cannot be served on {host}:{port}: {error.strerror or error}"
