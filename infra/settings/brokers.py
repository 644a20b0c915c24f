"""Parses and formats broker addresses, and probes which brokers answer."""

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

# Kafka's ApiVersions request, version 0, without a client id: a broker answers it before authentication.
_API_VERSIONS_REQUEST: Final = bytes.fromhex("0000000a 0012 0000 00000000 ffff")


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
    """Return the addresses that a client should try first.

    A hung broker accepts a connection and never answers, so that a client that begins there waits for long.

    Args:
        brokers: as people write them.
        security: keyword arguments of a Kafka client.
        advice: what else can be done where nobody answers, a clause.

    Raises:
        HarmonyError: nobody answers, or what is written is no address (exit code 2).
    """
    addresses = probe_brokers(parse_brokers(brokers), security).best
    if not addresses:
        raise unreachable_error(brokers, advice)
    return [format_brokers((address,)) for address in addresses]


def unreachable_error(brokers: str, advice: str = "") -> HarmonyError:
    """The error of a cluster that does not answer."""
    return HarmonyError(
        f"No Kafka broker answers at {brokers}. Check the address and that the broker runs "
        f"(--brokers, HARMONY_BROKERS){advice}."
    )


@dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Which brokers answered a probe.

    Attributes:
        answering: those that answered, or closed the connection.
        silent: those that accepted the connection and sent nothing in time: hung, stopped or very slow.
    """

    answering: tuple[Address, ...]
    silent: tuple[Address, ...]

    @property
    def best(self) -> tuple[Address, ...]:
        """Addresses for a client, which picks one at random; empty where no broker accepts connections."""
        return self.answering or self.silent


def probe_brokers(
    addresses: tuple[Address, ...], security: Mapping[str, Any] | None, timeout_s: float = 3.0
) -> BrokerProbe:
    """Probe all addresses at once.

    Args:
        security: keyword arguments of a Kafka client; of them only whether it speaks TLS matters.
    """
    tls = str((security or {}).get("security_protocol", "")).endswith("SSL")
    with ThreadPoolExecutor(len(addresses)) as pool:
        answers = list(pool.map(lambda address: _answers(address, tls, timeout_s), addresses))
    answering, silent = (
        tuple(address for address, answered in zip(addresses, answers, strict=True) if answered is state)
        for state in (True, False)
    )
    return BrokerProbe(answering, silent)


def _answers(address: Address, tls: bool, timeout_s: float) -> bool | None:
    """Return whether the broker answered; None where it accepted no connection."""
    try:
        connection = socket.create_connection(address, timeout_s)
    except OSError:
        return None
    with connection:
        try:
            connection.sendall(_client_hello(address[0]) if tls else _API_VERSIONS_REQUEST)
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass  # A closed connection shows that a broker is there; the client reports the reason.
        return True


def _client_hello(host: str) -> bytes:
    """Return the first bytes of a TLS handshake; certificates are checked later, by the client."""
    outgoing = ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()
