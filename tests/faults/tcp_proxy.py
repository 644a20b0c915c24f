"""A TCP proxy on the loopback interface that can be slow, go silent, or cut: the network between a worker and Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST and drops what is unsent


class TcpProxy:
    """Forwards every connection on `port` to a broker; what it does to bytes may be changed at any time.

    Attributes:
        latency_s: each way, for every chunk of bytes.
    """

    def __init__(self, port: int, to_port: int) -> None:
        self.port = port
        self.latency_s = 0.0
        self._to_port = to_port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def silence(self) -> int:
        """Connections of now stay open and carry nothing any more, as behind a firewall that forgot them."""
        return self._run(self._silence())

    def reset(self) -> int:
        """Cut every connection with a reset."""
        return self._run(self._reset_all())

    def partition(self, *, on: bool) -> None:
        """While on: nothing gets through, and new connections are cut as they come."""
        self._refusing = on
        if on:
            self.reset()

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _cut(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            _cut(writer)
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = self._loop.create_task(self._pump(source, target, pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if self.latency_s:
                    await asyncio.sleep(self.latency_s)
                if target in self._silent:
                    continue
                target.write(data)
                await target.drain()
        if target not in self._silent:
            self._pairs.discard(pair)
            for writer in pair:
                writer.close()

    async def _silence(self) -> int:
        self._silent |= {writer for pair in self._pairs for writer in pair}
        return len(self._pairs)

    async def _reset_all(self) -> int:
        pairs, self._pairs = self._pairs, set()
        self._silent.clear()
        for pair in pairs:
            for writer in pair:
                _cut(writer)
        return len(pairs)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _cut(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
