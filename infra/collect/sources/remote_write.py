"""A receiver for Prometheus' remote_write: what it takes is put together and published a moment later."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import cramjam
from aiohttp import web

from infra.collect.formats.exposition import UnreadableError
from infra.collect.formats.values import is_instant, with_aliases
from infra.collect.mapping.readings import Assembler
from infra.collect.points import Point
from infra.collect.publisher import RecordPublisher, pack
from infra.console.errors import HarmonyError
from infra.console.host import need
from infra.console.protobuf import message_classes
from infra.observability.connections import Listener, Reason, runner_of, server_of
from infra.observability.probes import may_ask
from streams.topics import Topics

# Prometheus remote-write requests, version 1: snappy blocks of protobuf.


MOST_COMPRESSED_BYTES = 16 << 20
MOST_BYTES = 64 << 20
_PURPOSE = "Remote write"
_PROTO = Path(__file__).with_name("remote_write.proto")


def read_remote_write(body: bytes) -> list[Point]:
    """The samples of one request.

    Raises:
        UnreadableError: no snappy, longer than may be, no such message, a series without a name, or a time that no
            record may hold.
        HarmonyError: the packages for it are not installed.
    """
    request = _message_class()()
    try:
        request.ParseFromString(_uncompressed(body))
    except Exception as error:
        if isinstance(error, UnreadableError) or type(error).__name__ != "DecodeError":
            raise
        raise UnreadableError("not a remote-write request of version 1") from None
    points = []
    for series in request.timeseries:
        labels = {label.name: label.value for label in series.labels}
        name = labels.pop("__name__", "")
        if not name:
            raise UnreadableError("a series has no __name__")
        labels = with_aliases(labels)
        for sample in series.samples:
            if not is_instant(sample.timestamp):
                raise UnreadableError(f"{name[:80]}: {sample.timestamp} is no time in milliseconds since 1970")
            points.append(Point(name, labels, sample.timestamp, sample.value))
    return points


def check_installed() -> None:
    """Say at the start, not at the first request, what is missing.

    Raises:
        HarmonyError: a package is not installed.
    """
    _message_class()


def _uncompressed(body: bytes) -> bytes:
    if len(body) > MOST_COMPRESSED_BYTES:
        raise UnreadableError(f"longer than {MOST_COMPRESSED_BYTES >> 20} MiB")
    size = _announced_size(body)
    if size > MOST_BYTES:
        raise UnreadableError(f"would be {size} bytes uncompressed, the limit is {MOST_BYTES}")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise UnreadableError("not compressed with snappy") from None


def _announced_size(body: bytes) -> int:
    """A snappy block begins with its uncompressed length as a varint."""
    size = 0
    for position, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return size
    raise UnreadableError("not compressed with snappy")


@cache
def _message_class() -> Any:
    """`prometheus.WriteRequest` as far as it is read."""
    return message_classes(_PROTO, lambda module: need(module, _PURPOSE))["harmony.remote_write.WriteRequest"]


PATH = "/api/v1/write"
_CONTENT_TYPE = "application/x-protobuf"
_NO_TOKEN = (401, "a bearer token is needed")
_FLUSH_S = 0.25
_TELL_EVERY_S = 60.0


class RemoteWriteServer:
    """Answers `POST /api/v1/write`, and publishes every `_FLUSH_S` what is complete.

    A request is acknowledged when it was understood; if this process dies in the moment before its readings are
    published they are lost, which leaves a gap in the telemetry and nothing worse.

    Args:
        assembler: puts the pieces together; one scrape comes in several requests.
        say: takes one line for people.
        token: senders show it; None: on loopback only, and asked for by a name of loopback.
    """

    def __init__(
        self,
        assembler: Assembler,
        topics: Topics,
        publisher: RecordPublisher,
        host: str,
        port: int,
        say: Callable[[str], None],
        token: str | None = None,
    ) -> None:
        self._assembler, self._topics, self._publisher = assembler, topics, publisher
        self._host, self._port, self._say, self._token = host, port, say, token
        self.requests = self.refused = self.records = self.lost = 0
        self._failing = False
        self._drops: Counter[Reason] = Counter()
        self._told_s = float("-inf")

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until told to stop, then publish what is left.

        Raises:
            HarmonyError: the address cannot be listened on.
        """
        app = web.Application(client_max_size=MOST_COMPRESSED_BYTES)
        app.router.add_post(PATH, self._write)
        runner = runner_of(app, self._dropped)
        await runner.setup()
        listener = Listener(server_of(runner), on_drop=self._dropped)
        try:
            try:
                host, port = await listener.start(self._host, self._port)
            except OSError as error:
                raise HarmonyError(
                    f"Cannot listen on {self._host}:{self._port}: {error.strerror or error}. Choose another --listen."
                ) from error
            self._say(f"remote_write: url: http://{host}:{port}{PATH}")
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _FLUSH_S)
                self._tell_drops()
                await self._publish(everything=False)
        finally:
            await listener.stop()
            await runner.cleanup()
            await self._publish(everything=True)

    async def _write(self, request: web.Request) -> web.Response:
        self.requests += 1
        if not may_ask(request, self._token):
            return self._refusal(*((403, "ask as 127.0.0.1 or localhost") if self._token is None else _NO_TOKEN))
        content_type = request.headers.get("Content-Type", "")
        # A web page may send any other kind of body to loopback unasked; for this one browsers ask first.
        if not content_type.startswith(_CONTENT_TYPE) or "io.prometheus.write.v2" in content_type:
            # The status by which a sender of version 2 knows to fall back to version 1.
            return self._refusal(415, "only version 1 is spoken here: protobuf_message: prometheus.WriteRequest")
        try:
            points = read_remote_write(await request.read())
        except UnreadableError as error:
            return self._refusal(400, str(error))
        now_s = monotonic()
        for point in points:
            self._assembler.add(point, now_s)
        return web.Response(status=204)

    def _refusal(self, status: int, reason: str) -> web.Response:
        self.refused += 1
        return web.Response(status=status, text=f"{reason}\n")

    def _dropped(self, reason: Reason) -> None:
        self._drops[reason] += 1

    def _tell_drops(self) -> None:
        """At most once a minute, however many there are."""
        if not self._drops or monotonic() - self._told_s < _TELL_EVERY_S:
            return
        self._told_s, malformed = monotonic(), self._drops.pop("malformed", 0)
        if malformed:
            self.refused += malformed
            self._say(f"{malformed} requests were no HTTP and were refused: something else writes to this port.")
        if self._drops:
            closed = self._drops.total()
            self._say(f"{closed} connections were closed to make room for new ones: see who holds so many.")
            self._drops.clear()

    async def _publish(self, *, everything: bool) -> None:
        readings = self._assembler.everything() if everything else self._assembler.due(monotonic())
        records = pack(readings, self._topics)
        if not records:
            return
        try:
            await asyncio.to_thread(self._publisher.publish, records)
        except HarmonyError as error:
            self.lost += len(records)
            if not self._failing:
                self._say(f"{error.message} Telemetry is lost until it does; trying on.")
            self._failing = True
        else:
            self.records += len(records)
            self._failing = False
