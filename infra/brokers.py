"""Broker addresses as people write them, and whether anything answers there."""

from __future__ import annotations

import socket

from infra.errors import HarmonyError

DEFAULT_PORT = 9092


def parse_brokers(text: str) -> tuple[tuple[str, int], ...]:
    """`host[:port]` separated by commas -> host and port of each; IPv6 hosts in brackets.

    Raises:
        HarmonyError: nothing named, or a port that is no port (exit code 2).
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise HarmonyError("No broker named: write host:port, several separated by commas.", 2)
    return tuple(_parse_one(part) for part in parts)


def _parse_one(part: str) -> tuple[str, int]:
    if "://" in part:
        raise HarmonyError(f"{part!r} is no broker address: write host:port without a scheme.", 2)
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]"):
        host, port = part, str(DEFAULT_PORT)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise HarmonyError(f"{part!r} is no broker address: write host:port, for example 127.0.0.1:9092.", 2)
    return host.strip("[]"), int(port)


def format_brokers(addresses: tuple[tuple[str, int], ...]) -> str:
    """The normal form: `host:port,host:port`."""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


def any_listens(addresses: tuple[tuple[str, int], ...], timeout_s: float = 3.0) -> bool:
    """True when at least one address accepts a connection: tells a dead address from a slow cluster at once."""
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout_s).close()
        except OSError:
            continue
        return True
    return False
