"""A listening socket whose connections are bounded, in all and per peer, so that a flood costs the one who makes it.

Beyond a bound the oldest connection of the peer that has the most is closed, and the new one is served. So a probe is
answered at once however many connections are open: its request is over long before it is the oldest. Connections count
from the moment they are accepted, those that do not finish a TLS handshake included.

A listener accepts connections itself because `loop.create_server` accepts all that come, which uses up the open files
of the process, and then nobody is answered.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from infra.console.errors import HarmonyError

Reason = Literal["peer", "all", "files", "malformed"]

# A page holds up to six connections, a reader of events one; Prometheus and a kubelet one each.
MAX_CONNECTIONS: Final = 256
# A proxy in front of the page is one peer.
_MAX_PER_PEER_RATIO: Final = 0.5
# Share of the open files of this process that its web server may use.
_MAX_FILES_RATIO: Final = 0.25
# Until the first request is complete, or the next one on a connection that is kept. Prometheus opens a new one then.
IDLE_TIMEOUT_S: Final = 20.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
# Connections that wait to be accepted. Beyond it the system drops them, and a client tries again only a second later.
_BACKLOG: Final = 1024
# After a failed accept: until descriptors are free again.
_PAUSE_S: Final = 0.05
_NOTHING_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class ConnectionLimits(NamedTuple):
    """Connections that may be open at once."""

    total: int
    per_peer: int

    @classmethod
    def of_this_process(cls) -> ConnectionLimits:
        """The usual limits, or fewer where the process may have few open files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else int(soft * _MAX_FILES_RATIO)
        total = max(min(MAX_CONNECTIONS, share), 8)
        return cls(total, int(total * _MAX_PER_PEER_RATIO))


class _Connection:
    """An accepted connection: in its handshake (a task), or open (a transport)."""

    __slots__ = ("peer", "protocol", "task", "transport")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.BaseTransport | None = None
        self.protocol: asyncio.BaseProtocol | None = None

    def close(self) -> None:
        if isinstance(self.transport, asyncio.Transport | asyncio.WriteTransport):
            self.transport.abort()
        elif self.transport is not None:
            self.transport.close()
        elif self.task is not None:
            self.task.cancel()


class Listener:
    """Accepts connections for a web server, within limits.

    Args:
        server: `AppRunner.server`, which makes the protocol of each connection.
        tls: speak TLS.
        limits: None = those of this process.
        on_drop: hears why a connection was closed: too many of its peer, too many in all, or no open file left.
    """

    def __init__(
        self,
        server: web.Server,
        *,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
        on_drop: Callable[[Reason], None] = lambda _: None,
    ) -> None:
        self._server, self._tls, self._on_drop = server, tls, on_drop
        self._limits = limits or ConnectionLimits.of_this_process()
        # In the order in which they were accepted.
        self._open: dict[_Connection, None] = {}
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Bind every address of the host and accept; address and port of the first.

        Raises:
            OSError: an address cannot be bound, or the host is none of this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for n, (family, _, _, _, address) in enumerate(unique := list(dict.fromkeys(found))):
            try:
                self._sockets.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                # `localhost` may have an address of a family that this machine does without.
                is_last = n == len(unique) - 1 and not self._sockets
                if error.errno != errno.EADDRNOTAVAIL or is_last:
                    self._close_sockets()
                    raise
                continue
            # Of a free port all addresses take the same one.
            port = port or self._sockets[0].getsockname()[1]
        self._tasks = [loop.create_task(self._accept(listening)) for listening in self._sockets]
        bound_host, bound_port = self._sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def stop(self) -> None:
        """Accept no more, and end the handshakes under way; the web server closes what is open."""
        tasks = [*self._tasks, *(c.task for c in self._open if c.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets = []

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # it has left again
            except OSError as error:
                if error.errno in _NOTHING_LEFT:
                    # What is freed here serves the next connection.
                    self._drop("files", None)
                await asyncio.sleep(_PAUSE_S)
                continue
            connection = _Connection(str(address[0]))
            self._make_room(connection.peer)
            self._open[connection] = None
            connection.task = loop.create_task(self._serve(connection, accepted))
            # A task that is cancelled before it has begun closes nothing.
            connection.task.add_done_callback(partial(_close_if_cancelled, accepted))

    async def _serve(self, connection: _Connection, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = _HANDSHAKE_TIMEOUT_S if self._tls else None
        try:
            connection.transport, connection.protocol = await loop.connect_accepted_socket(
                self._server, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, asyncio.CancelledError):
            pass  # of a handshake: the peer left, was too slow, or gave way
        finally:
            connection.task = None
            if connection.transport is None:
                accepted.close()
                self._open.pop(connection, None)

    def _make_room(self, peer: str) -> None:
        """Close what is in the way of one more connection of this peer."""
        alive = {id(protocol) for protocol in self._server.connections}
        self._open = {c: None for c in self._open if c.protocol is None or id(c.protocol) in alive}
        if sum(c.peer == peer for c in self._open) >= self._limits.per_peer:
            self._drop("peer", peer)
        elif len(self._open) >= self._limits.total:
            self._drop("all", None)

    def _drop(self, reason: Reason, peer: str | None) -> None:
        """Close the oldest connection of this peer; None = of the one that has the most."""
        if peer is None:
            ((peer, _),) = Counter(c.peer for c in self._open).most_common(1) or ((None, 0),)
        oldest = next((c for c in self._open if c.peer == peer), None)
        if oldest is not None:
            del self._open[oldest]
            oldest.close()
        self._on_drop(reason)


def _close_if_cancelled(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        accepted.close()


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # The connections of a predecessor that are being closed hold the port for minutes otherwise.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError):
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.settimeout(0.0)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class _MalformedRequests(logging.Filter):
    """Hears of requests that are no HTTP, of which aiohttp would log a stack trace each, from anybody, without end."""

    def __init__(self, on_drop: Callable[[Reason], None]) -> None:
        super().__init__()
        self._on_drop = on_drop

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            return True
        self._on_drop("malformed")
        return False


def runner_of(app: web.Application, on_drop: Callable[[Reason], None], **options: Any) -> web.AppRunner:
    """A runner that closes idle connections, and that counts malformed requests instead of logging each.

    Args:
        on_drop: hears `malformed` of each.
        options: more of `AppRunner`'s.
    """
    logger = logging.Logger("harmony.web")  # noqa: LOG001 - each with a filter of its own
    logger.parent = logging.getLogger("aiohttp.server")
    logger.addFilter(_MalformedRequests(on_drop))
    return web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_TIMEOUT_S, logger=logger, **options)


def server_of(runner: web.AppRunner) -> web.Server:
    """The web server of a runner that was set up.

    Raises:
        HarmonyError: it was not.
    """
    if runner.server is None:
        raise HarmonyError("the web server was not set up")
    return runner.server
