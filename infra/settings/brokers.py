"""Broker addresses as people write them, and whether anything answers there."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from infra.console.errors import HarmonyError

DEFAULT_PORT = 9092

OR_START_ONE: Final = ", or start one with `harmony run`"

Address = tuple[str, int]

# ApiVersions, version 0, without a client id: the one question that a broker answers before it knows who asks.
_QUESTION: Final = bytes.fromhex("0000000a 0012 0000 00000000 ffff")


def parse_brokers(text: str) -> tuple[Address, ...]:
    """`host[:port]` separated by commas -> host and port of each; IPv6 hosts in brackets.

    Raises:
        HarmonyError: nothing named, or a port that is no port (exit code 2).
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise HarmonyError("No broker named: write host:port, several separated by commas.", 2)
    return tuple(_parse_one(part) for part in parts)


def _parse_one(part: str) -> Address:
    if "://" in part:
        raise HarmonyError(f"{part!r} is no broker address: write host:port without a scheme.", 2)
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]"):
        host, port = part, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise HarmonyError(f"{part!r} is no broker address: write host:port, for example 127.0.0.1:9092.", 2)
    try:
        host.encode("idna")
    except UnicodeError:
        raise HarmonyError(f"{part!r} is no broker address: a part of the name is empty or too long.", 2) from None
    return host.strip("[]"), int(port)


def format_brokers(addresses: tuple[Address, ...]) -> str:
    """The normal form: `host:port,host:port`."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def bootstrap_servers(brokers: str, security: Mapping[str, Any] | None, advice: str = "") -> list[str]:
    """Where a client shall begin: a hung broker among several accepts its connection, and it waits there for long.

    Args:
        brokers: as people write them.
        security: keyword arguments of a Kafka client.
        advice: what else can be done where nobody answers, a clause.

    Raises:
        HarmonyError: nobody answers, or what is written is no address (exit code 2).
    """
    addresses = knock(parse_brokers(brokers), security).best
    if not addresses:
        raise nobody_answers(brokers, advice)
    return [format_brokers((address,)) for address in addresses]


def nobody_answers(brokers: str, advice: str = "") -> HarmonyError:
    """The error of a cluster that does not answer."""
    return HarmonyError(
        f"No Kafka broker answers at {brokers}. Check the address and that the broker runs "
        f"(--brokers, HARMONY_BROKERS){advice}."
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """What became of a knock at every address.

    Attributes:
        answering: said something, or closed the connection.
        silent: accepted it and said nothing in time: a hung or stopped broker does so, or one that is very slow.
    """

    answering: tuple[Address, ...]
    silent: tuple[Address, ...]

    @property
    def best(self) -> tuple[Address, ...]:
        """For a client, which picks one at random and waits for it; none where nobody is there."""
        return self.answering or self.silent


def knock(addresses: tuple[Address, ...], security: Mapping[str, Any] | None, timeout_s: float = 3.0) -> Reach:
    """Ask all at once. A client that begins with a hung broker of several may give up before it tries the next.

    Args:
        security: keyword arguments of a Kafka client; of them only whether it speaks TLS matters.
    """
    tls = str((security or {}).get("security_protocol", "")).endswith("SSL")
    with ThreadPoolExecutor(len(addresses)) as pool:
        found = list(pool.map(lambda address: _heard(address, tls, timeout_s), addresses))
    answering, silent = (
        tuple(a for a, heard in zip(addresses, found, strict=True) if heard is wanted) for wanted in (True, False)
    )
    return Reach(answering, silent)


def _heard(address: Address, tls: bool, timeout_s: float) -> bool | None:
    """Whether there was an answer; None where no connection was taken."""
    try:
        connection = socket.create_connection(address, timeout_s)
    except OSError:
        return None
    with connection:
        try:
            connection.sendall(_client_hello(address[0]) if tls else _QUESTION)
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass  # it was closed on us: somebody is there, and why not is for the client to find out
        return True


def _client_hello(host: str) -> bytes:
    """The first words of TLS. Whoever answers them is not believed yet: that is the client's work."""
    outgoing = ssl.MemoryBIO()
    begun = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()
