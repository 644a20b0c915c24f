"""Addresses of servers, and the HTTP client that commands use in threads.

An address is taken apart, or refused in one sentence, and shown without passwords. A request is bounded in time and in
size, and its credentials reach only the scheme, host and port that they are for.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from infra.console.errors import HarmonyError
from infra.console.text import printable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, StreamReader

# `user:password@`, after the scheme or where there is none.
_CREDENTIALS = re.compile(r"(?:(?<=://)|^)[^/?#]*@")
# Values of a query whose names say that they open something. Other values tell one exporter from another.
_SECRETS = re.compile(r"(?i)(?<=[?&])([^=&#]*(?:auth|credential|key|pass|pwd|secret|sig|token)[^=&#]*=)[^&#]+")
_MOST_CHARS = 200


def printable_url(url: str) -> str:
    """The address as it may be printed, logged or used as a key: without `user:password@`, tokens and keys.

    >>> printable_url("http://u:secret@host:9090/metrics?token=secret&part=gpu")
    'http://host:9090/metrics?token=...&part=gpu'
    """
    return _SECRETS.sub(r"\1...", _CREDENTIALS.sub("", url, count=1))


def split_url(url: str, expected: str) -> SplitResult:
    """The parts of an http or https address that names a host.

    Args:
        expected: what it should be and how to write it, to follow "is no".

    Raises:
        HarmonyError: it is none (exit code 2).
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and _is_one_word(url):
            return parts
    except ValueError:
        # A bracket that is never closed, a port that is no number.
        pass
    # A password with a slash in it ends the host too early: nothing before an @ is said.
    address = printable_url(url).rpartition("@")[2]
    raise HarmonyError(f"{printable(address, _MOST_CHARS)!r} is no {expected}.", 2)


def _is_one_word(url: str) -> bool:
    return url.isprintable() and " " not in url


_MAX_ANSWER_BYTES = 256 << 20
_MAX_DETAIL_BYTES = 300
_MAX_REDIRECTS = 10
# Some proxies and exporters send long headers; this is the limit of Python's own client.
_MAX_HEADER_BYTES = 64 << 10
# The only headers that another scheme, host or port receives after a redirection: credentials may be in any other.
_HEADERS_FOR_ANYBODY = ("Accept", "Accept-Encoding", "User-Agent")
_REDIRECTS = (301, 302, 303, 307, 308)


class FetchError(Exception):
    """No usable answer; the message says why, without credentials."""


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Sends single requests, bounded in time and size; credentials reach only the scheme, host and port they are for.

    Attributes:
        timeout_s: of one request, from the connection to the last byte.
        headers: sent with each.
        context: for https.
    """

    timeout_s: float
    headers: tuple[tuple[str, str], ...] = ()
    context: ssl.SSLContext | None = None

    def get(self, url: str, accept: str, body: bytes | None = None) -> str:
        """The answer's text; with a body, of a POST form. Call it from a thread without a running event loop.

        Raises:
            FetchError: no connection, an error status, too long or no text.
        """
        try:
            return asyncio.run(self._fetch(url, accept, body)).decode("utf-8")
        except UnicodeDecodeError:
            raise FetchError("the answer is no text") from None

    async def _fetch(self, url: str, accept: str, body: bytes | None) -> bytes:
        from aiohttp import ClientError, ClientSession, DummyCookieJar, TCPConnector, ThreadedResolver

        address, headers = _without_credentials(url)
        # The answer is read as it comes: a small compressed one could otherwise become a large one.
        headers |= {"User-Agent": "harmony", **dict(self.headers), "Accept": accept, "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                ClientSession(
                    connector=TCPConnector(resolver=ThreadedResolver(), force_close=True),
                    cookie_jar=DummyCookieJar(),
                    auto_decompress=False,
                    max_line_size=_MAX_HEADER_BYTES,
                    max_field_size=_MAX_HEADER_BYTES,
                ) as session,
            ):
                for _ in range(_MAX_REDIRECTS):
                    content, location = await self._ask(session, address, headers, body)
                    if location is None:
                        return content
                    target = urljoin(address, location)
                    if urlsplit(target)[:2] != urlsplit(address)[:2]:
                        headers = {name: value for name, value in headers.items() if name in _HEADERS_FOR_ANYBODY}
                    # A form goes only to the address that it was written for.
                    address, body = _without_credentials(target)[0], None
                raise FetchError(f"more than {_MAX_REDIRECTS} redirections")
        except HarmonyError as error:
            raise FetchError(error.message) from None
        except (ClientError, OSError, ValueError) as error:
            raise FetchError(_problem(error)) from None

    async def _ask(
        self, session: ClientSession, address: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[bytes, str | None]:
        """Content of an answer, and the address that it redirects to, if any."""
        from yarl import URL

        parts = split_url(address, "address")
        host = parts.hostname or ""
        async with session.request(
            "GET" if body is None else "POST",
            URL(address, encoded=address.isascii()),
            data=body,
            headers=headers,
            ssl=self.context or True,
            proxy=None if proxy_bypass(host) else getproxies().get(parts.scheme),
            allow_redirects=False,
        ) as answer:
            location = answer.headers.get("Location")
            if answer.status in _REDIRECTS and location and (body is None or answer.status < 307):
                return b"", location
            if not 200 <= answer.status < 300:
                raise FetchError(await _refusal(answer))
            content = await read_beginning(answer.content, _MAX_ANSWER_BYTES + 1)
            if len(content) > _MAX_ANSWER_BYTES:
                raise FetchError(f"the answer is longer than {_MAX_ANSWER_BYTES >> 20} MiB")
            return content, None


async def _refusal(answer: ClientResponse) -> str:
    """Status and the start of the body, which may be cut off."""
    from aiohttp import ClientError

    try:
        detail = (await read_beginning(answer.content, _MAX_DETAIL_BYTES)).decode("utf-8", "replace").strip()
    except (ClientError, OSError):
        detail = ""
    return printable(f"HTTP {answer.status} {answer.reason}{f': {detail}' if detail else ''}")


async def read_beginning(content: StreamReader, num_bytes: int) -> bytes:
    """The first bytes of an answer, which may come in pieces."""
    pieces, missing = [], num_bytes
    while missing and (piece := await content.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _problem(error: Exception) -> str:
    """A failed request in one sentence: aiohttp's own sentences hold addresses, which may hold tokens."""
    from aiohttp import (
        ClientConnectorCertificateError,
        ClientConnectorError,
        ClientPayloadError,
        ClientResponseError,
        InvalidURL,
        ServerDisconnectedError,
    )

    if isinstance(error, ClientConnectorCertificateError):
        return str(error.certificate_error)
    cause = error.os_error if isinstance(error, ClientConnectorError) else error
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(error, ServerDisconnectedError):
        return "Remote end closed connection without response"
    if isinstance(error, ClientPayloadError):
        return "the connection ended before all of the answer had come"
    if isinstance(error, ClientResponseError):
        return printable(f"the answer is not HTTP: {error.message}", _MAX_DETAIL_BYTES)
    if isinstance(error, InvalidURL):
        return "the address is not valid"
    if (
        isinstance(cause, OSError)
        and cause.errno is not None
        and cause.errno > 0
        and not isinstance(cause, ssl.SSLError)
    ):
        return f"[Errno {cause.errno}] {os.strerror(cause.errno)}"
    return str(cause) or type(cause).__name__


def http_client(
    timeout_s: float, headers: tuple[str, ...] = (), token_file: Path | None = None, ca_file: Path | None = None
) -> HttpClient:
    """A client with the headers, token and certificate authority that options of a command name.

    Raises:
        HarmonyError: a text without a header's name, or a file that cannot be read (exit code 2).
    """
    pairs = []
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise HarmonyError("--header: write 'Name: value'.", 2)
        pairs.append((name.strip(), value.strip()))
    try:
        if token_file is not None:
            pairs.append(("Authorization", f"Bearer {token_file.read_text(encoding='utf-8').strip()}"))
        context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    except (OSError, ValueError) as error:
        path = getattr(error, "filename", None) or ca_file or token_file
        raise HarmonyError(f"Cannot use {path}: {getattr(error, 'strerror', None) or error}.", 2) from None
    return HttpClient(timeout_s, tuple(pairs), context)


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """`user:password@` of a URL becomes a header, as curl does it."""
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    encoded = base64.b64encode(credentials.encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {encoded}"}
