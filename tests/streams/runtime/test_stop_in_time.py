"""Leaving: a broker that does not say goodbye over TLS keeps nobody; what goes wrong meanwhile is heard."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import pytest

from streams.runtime.transport import stop_in_time
from tests.infra.actuate import certificates


class _Mute:
    """A TLS server that shakes hands and never says anything again."""

    def __init__(self, home: Path) -> None:
        files = certificates.make(home)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files["server.pem"], files["server.key"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.port: int = self._listener.getsockname()[1]
        self.trusted = ssl.create_default_context(cafile=str(files["ca.pem"]))

    def _serve(self) -> None:
        with self._context.wrap_socket(self._listener.accept()[0], server_side=True):
            self._end.wait()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()
        self._listener.close()


async def test_nobody_is_kept_by_a_peer_that_does_not_close_its_side(tmp_path: Path) -> None:
    server = _Mute(tmp_path)
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=server.trusted)
        writer.close()
        closed = asyncio.ensure_future(writer.wait_closed())
        done, _ = await asyncio.wait([closed], timeout=0.5)
        assert not done, "the server has said goodbye: there is nothing to be kept by"
        await asyncio.wait_for(stop_in_time(writer.wait_closed(), limit_s=0.1), 10.0)
        closed.cancel()
    finally:
        server.stop()


async def test_who_stops_at_once_is_not_waited_for_and_what_fails_is_heard() -> None:
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    await stop_in_time(done, limit_s=60.0)

    async def fail() -> None:
        raise ValueError("no coordinator")

    with pytest.raises(ValueError, match="no coordinator"):
        await stop_in_time(fail())
