"""HTTP requests to exporters and to Prometheus, with their credentials, bounded in time and size."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from http.client import HTTPMessage
from pathlib import Path
from time import monotonic
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from infra.console.errors import HarmonyError
from infra.console.text import printable

# What urllib leaves open: an answer that never ends, and credentials that follow a redirection to somebody else.


# Of what a request says, all that a stranger is told.
_FOR_ANYBODY = ("Accept", "User-agent")


class _Reading(io.RawIOBase):
    """What comes over a socket before an instant; urllib's own limit begins anew with every byte.

    Args:
        raw: reads the socket.
    """

    def __init__(self, raw: io.RawIOBase, connected: socket.socket, end_s: float) -> None:
        self._raw, self._socket, self._end_s = raw, connected, end_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._end_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out before all of the answer had come")
        self._socket.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, end_s: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Reading(self.fp.detach(), sock, end_s))


class _Bounded(http.client.HTTPConnection):
    """A connection for one request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.timeout is not None
        self.response_class = partial(_Answer, end_s=monotonic() + self.timeout)  # type: ignore[assignment]


class _BoundedTls(_Bounded, http.client.HTTPSConnection):
    """The same over TLS."""


class _BoundedHttp(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, req)


class BoundedHttps(urllib.request.HTTPSHandler):
    """For https; takes the `context` of the connections."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedTls, req, context=self._context)  # type: ignore[attr-defined]


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Followed, but only whoever was asked sees the credentials: another port may be another's program."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(new.full_url)[:2] != urlsplit(req.full_url)[:2]:
            new.headers = {name: value for name, value in new.headers.items() if name in _FOR_ANYBODY}
        return new


HANDLERS = (_BoundedHttp, _Redirections)


_MOST_BYTES = 256 << 20
_MOST_SAID = 300


class FetchError(Exception):
    """No usable answer; the message says why, without credentials."""


@dataclass(frozen=True, slots=True)
class Http:
    """How to ask.

    Attributes:
        timeout_s: of one request, from the connection to the last byte.
        headers: sent with each.
        context: for https.
    """

    timeout_s: float
    headers: tuple[tuple[str, str], ...] = ()
    context: ssl.SSLContext | None = None

    def get(self, url: str, accept: str, body: bytes | None = None) -> str:
        """The answer's text; with a body, of a POST form.

        Raises:
            FetchError: no connection, an error status, too long or no text.
        """
        address, headers = _without_credentials(url)
        headers |= {**dict(self.headers), "Accept": accept}
        opener = urllib.request.build_opener(*HANDLERS, BoundedHttps(context=self.context))
        try:
            request = urllib.request.Request(address, data=body, headers=headers)  # noqa: S310 - addresses are checked to be HTTP
            with opener.open(request, timeout=self.timeout_s) as answer:
                content: bytes = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise FetchError(_refusal(error)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise FetchError(str(reason) or type(error).__name__) from None
        if len(content) > _MOST_BYTES:
            raise FetchError(f"the answer is longer than {_MOST_BYTES >> 20} MiB")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise FetchError("the answer is no text") from None


def _refusal(error: urllib.error.HTTPError) -> str:
    """Status and what the other side says of it, which may end in the middle."""
    with error:
        try:
            detail = error.read(_MOST_SAID).decode("utf-8", "replace").strip()
        except (OSError, ValueError, http.client.HTTPException):
            detail = ""
    return printable(f"HTTP {error.code} {error.reason}{f': {detail}' if detail else ''}")


def configured(
    timeout_s: float, headers: tuple[str, ...] = (), token_file: Path | None = None, ca_file: Path | None = None
) -> Http:
    """From what flags say.

    Raises:
        HarmonyError: a header that is none, or a file that cannot be read (exit code 2).
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
        named = getattr(error, "filename", None) or ca_file or token_file
        raise HarmonyError(f"Cannot use {named}: {getattr(error, 'strerror', None) or error}.", 2) from None
    return Http(timeout_s, tuple(pairs), context)


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """`user:password@` of a URL becomes a header, as curl does it."""
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    encoded = base64.b64encode(credentials.encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {encoded}"}
