"""Floods of connections: probes are answered all the same, and what is idle or slow is closed."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from infra.observability import connections
from infra.observability.connections import ConnectionLimits
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.probes import ProbeServer
from tests.infra.actuate.certificates import make

OPEN_FILES, HALF_OPEN, STREAMS, SLOW = 1024, 1_000, 300, 200


@contextmanager
def crowded(*words: str) -> Iterator[int]:
    """The port of a server that may have `OPEN_FILES`, in a process of its own."""
    command = [sys.executable, "-m", "tests.infra.observability.crowded", str(OPEN_FILES), *words]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.communicate(timeout=20)
        assert child.returncode == 0


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2_500:
        pytest.skip(f"a flood takes 2,500 open files, this system lets a process have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(port: int, sent: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=2)
    if sent:
        peer.sendall(sent)
    return peer


def probe(port: int, address: str = "127.0.0.1", patience_s: float = 1.0) -> bool:
    """Whether `/livez` says 200."""
    try:
        with socket.create_connection((address, port), timeout=patience_s) as peer:
            peer.settimeout(patience_s)
            peer.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return peer.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def flood(port: int) -> list[socket.socket]:
    """Half-open connections, readers of events, and requests that come a byte at a time."""
    sent = [b""] * HALF_OPEN + [b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"] * STREAMS
    sent += [b"GET /livez HTTP/1.1\r\nX-Slow: a"] * SLOW
    peers = []
    for request in sent:
        try:
            peers.append(connected(port, request))
        except OSError:
            break
    return peers


def answered(port: int, probes: int, patience_s: float = 1.0) -> int:
    """How many of so many probes are, while the flood goes on."""
    peers = flood(port)
    try:
        looks = 0
        for _ in range(probes):
            for peer in peers[-SLOW:]:
                with suppress(OSError):
                    peer.sendall(b"a")
            for k in range(20):
                with suppress(OSError):
                    peers[k].close()
                    peers[k] = connected(port)
            looks += probe(port, patience_s=patience_s)
            time.sleep(0.02)
        return looks
    finally:
        for peer in peers:
            peer.close()


def test_probes_are_answered_while_the_page_is_flooded() -> None:
    with crowded() as port:
        # On a quiet machine each is answered within a second; here it is only told that none is lost.
        assert answered(port, 13, patience_s=30.0) == 13


def test_without_bounds_they_are_not() -> None:
    with crowded("free") as port:
        assert answered(port, 3) < 2


def server(**options: object) -> ProbeServer:
    return ProbeServer(Health(monotonic()), PrometheusMeter(), port=0, **options)  # type: ignore[arg-type]


def is_closed(peer: socket.socket, within_s: float) -> bool:
    peer.settimeout(within_s)
    try:
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def run(test: object) -> None:
    asyncio.run(asyncio.wait_for(test, 20))  # type: ignore[arg-type]


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nX-Slow: a"], ids=["half-open", "headers cut off"])
def test_what_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async def look() -> None:
        monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.3)
        own = server()
        await own.start()
        try:
            slow = connected(own.port, sent)
            begin_s = monotonic()
            while monotonic() - begin_s < 0.2 and sent:
                slow.sendall(b"a")
                await asyncio.sleep(0.05)
            assert await asyncio.to_thread(is_closed, slow, 5.0)
            assert monotonic() - begin_s < 2.0
            slow.close()
        finally:
            await own.stop()

    run(look())


def test_beyond_a_bound_the_oldest_of_the_peer_with_the_most_is_closed() -> None:
    async def look() -> None:
        heard: list[str] = []
        own = server(limits=ConnectionLimits(total=4, per_peer=3), on_drop=heard.append)
        await own.start()
        try:
            peers = [connected(own.port) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert heard == []
            peers.append(connected(own.port))
            await asyncio.sleep(0.1)
            assert heard == ["peer"]
            assert await asyncio.to_thread(is_closed, peers[0], 5.0)
            assert not await asyncio.to_thread(is_closed, peers[1], 0.1)
            # One that has left makes room by itself.
            peers[1].close()
            await asyncio.sleep(0.1)
            peers.append(connected(own.port))
            await asyncio.sleep(0.1)
            assert heard == ["peer"]
            for peer in peers:
                peer.close()
        finally:
            await own.stop()

    run(look())


def test_another_peer_costs_the_one_that_has_the_most() -> None:
    async def look() -> None:
        heard: list[str] = []
        own = server(limits=ConnectionLimits(total=4, per_peer=4), host="0.0.0.0", token="t", on_drop=heard.append)
        await own.start()
        try:
            kept = socket.create_connection(("127.0.0.1", own.port), source_address=("127.0.0.2", 0))
            many = [connected(own.port) for _ in range(3)]
            await asyncio.sleep(0.1)
            third = socket.create_connection(("127.0.0.1", own.port), source_address=("127.0.0.3", 0))
            await asyncio.sleep(0.1)
            assert heard == ["all"]
            assert await asyncio.to_thread(is_closed, many[0], 5.0)
            assert not await asyncio.to_thread(is_closed, kept, 0.1)
            for peer in (kept, third, *many):
                peer.close()
        finally:
            await own.stop()

    run(look())


def test_handshakes_count_and_are_served(tmp_path: Path) -> None:
    async def look() -> None:
        files = make(tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files["server.pem"], files["server.key"])
        own = server(limits=ConnectionLimits(total=4, per_peer=4), tls=context)
        await own.start()
        try:
            silent = [connected(own.port) for _ in range(9)]
            trusting = ssl.create_default_context(cafile=files["ca.pem"])
            reader, writer = await asyncio.open_connection("127.0.0.1", own.port, ssl=trusting)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
            assert await asyncio.to_thread(is_closed, silent[0], 5.0)
            for peer in silent:
                peer.close()
        finally:
            await own.stop()

    run(look())


@pytest.mark.parametrize(
    ("sent", "times"),
    [
        # aiohttp logs one that does not begin with a method at its lowest level only.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0),
        (b"GET / HTTP/a.b\r\n\r\n", 3),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 3),
        (b"GET / HTTP/1.1\r\n\x00: 1\r\n\r\n", 3),
    ],
    ids=["TLS", "version", "long header", "zero byte"],
)
def test_a_request_that_is_no_http_is_counted_and_logs_no_stack_trace(
    sent: bytes, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def look() -> None:
        heard: list[str] = []
        own = server(on_drop=heard.append)
        await own.start()
        try:
            for _ in range(3):
                peer = connected(own.port, sent)
                await asyncio.to_thread(is_answered_and_closed, peer)
                peer.close()
            assert heard == ["malformed"] * times
            assert await asyncio.to_thread(probe, own.port)
        finally:
            await own.stop()

    run(look())
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info and record.levelname == "ERROR"]


def test_a_mistake_of_ours_is_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        own = server(parts=(lambda app: app.router.add_get("/wrong", _wrong),))
        await own.start()
        try:
            peer = connected(own.port, b"GET /wrong HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            await asyncio.to_thread(is_answered_and_closed, peer)
            peer.close()
        finally:
            await own.stop()

    run(look())
    assert "our mistake" in caplog.text


async def _wrong(_: object) -> web.Response:
    raise ValueError("our mistake")


def is_answered_and_closed(peer: socket.socket) -> None:
    peer.settimeout(5)
    with suppress(ConnectionError):
        while peer.recv(4096):
            pass


def test_without_open_files_an_old_connection_gives_way() -> None:
    """More may connect than the process can have open; then the oldest one is closed, and the next one is served."""

    async def look() -> None:
        heard: list[str] = []
        own = server(limits=ConnectionLimits(total=9_999, per_peer=9_999), on_drop=heard.append)
        await own.start()
        peers = [connected(own.port) for _ in range(20)]
        await asyncio.sleep(0.1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = [socket.socket() for _ in range(2)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(p.fileno() for p in waiting) + 1, hard))
            for peer in waiting:
                peer.connect(("127.0.0.1", own.port))
            waiting[1].sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            waiting[1].settimeout(5)
            answer = await asyncio.to_thread(waiting[1].recv, 64)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await own.stop()
        assert answer.startswith(b"HTTP/1.1 200")
        assert set(heard) == {"files"}
        for peer in (*peers, *waiting):
            peer.close()

    run(look())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_every_address_of_a_name_is_served(host: str) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}

    async def look() -> None:
        own = server(host=host)
        await own.start()
        try:
            for address in addresses:
                assert await asyncio.to_thread(probe, own.port, address)
        finally:
            await own.stop()

    try:
        for address in addresses:
            socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        pytest.skip(f"this machine does without an address of {host}")
    run(look())
