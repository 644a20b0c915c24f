"""Broker addresses, and who answers there."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from infra.console.errors import HarmonyError
from infra.console.host import free_port
from infra.settings.brokers import Address, format_brokers, parse_brokers, probe_brokers
from tests.infra.actuate.certificates import make

HEADER = bytes.fromhex("00120000 00000000 ffff")  # ApiVersions, version 0, correlation 0, no client id


@contextmanager
def listener(answer: Callable[[socket.socket], None] | None) -> Iterator[Address]:
    """Accepts connections and does this with each; None: the system accepts them and nobody ever looks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return
                answer(taken[-1])  # type: ignore[misc]

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[:2]
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


def as_a_broker(heard: list[bytes]) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        heard.append(connection.recv(100))
        connection.sendall(b"\0\0\0\4\0\0\0\0")

    return answer


def test_a_hung_broker_is_left_out_where_others_answer() -> None:
    heard: list[bytes] = []
    with ExitStack() as stack:
        hung = stack.enter_context(listener(None))
        closing = stack.enter_context(listener(lambda connection: connection.close()))
        well = stack.enter_context(listener(as_a_broker(heard)))
        nobody = ("127.0.0.1", free_port())
        reach = probe_brokers((nobody, hung, closing, well), None, timeout_s=1.0)
        alone = probe_brokers((hung, nobody), None, timeout_s=1.0)
    assert (reach.answering, reach.silent) == ((closing, well), (hung,))
    assert reach.best == (closing, well)
    assert alone.best == (hung,)
    assert heard == [len(HEADER).to_bytes(4, "big") + HEADER]


def test_one_that_speaks_tls_is_greeted_in_tls(tmp_path: Path) -> None:
    files = make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["server.pem"], files["server.key"])
    heard: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        heard.append(connection.recv(1, socket.MSG_PEEK))
        with suppress(OSError):  # whoever knocks does not stay for the whole handshake
            context.wrap_socket(connection, server_side=True)

    with listener(answer) as well, listener(None) as hung:
        reach = probe_brokers((hung, well), {"security_protocol": "SASL_SSL"}, timeout_s=2.0)
    assert (reach.answering, reach.silent) == ((well,), (hung,))
    assert heard == [b"\x16"]  # a handshake record


@pytest.mark.parametrize("text", ["a..b:9092", ".x", "http://x:1", "x:0", "x:y", " , "])
def test_what_is_no_address_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(HarmonyError) as told:
        parse_brokers(text)
    assert told.value.exit_code == 2


def test_addresses_read_back_as_written() -> None:
    assert format_brokers(parse_brokers("a, [::1]:9,b:1")) == "a:9092,[::1]:9,b:1"
