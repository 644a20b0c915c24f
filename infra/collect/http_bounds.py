"""What urllib leaves open: an answer that never ends, and credentials that follow a redirection to somebody else."""

from __future__ import annotations

import http.client
import io
import socket
import urllib.request
from functools import partial
from http.client import HTTPMessage
from time import monotonic
from typing import IO, Any
from urllib.parse import urlsplit

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
