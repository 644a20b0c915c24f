"""HTTP requests to exporters and to Prometheus, with their credentials, bounded in time and size."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from infra.collect.http_bounds import HANDLERS, BoundedHttps
from infra.console.errors import HarmonyError
from infra.console.text import printable

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
            request = urllib.request.Request(address, data=body, headers=headers)  # noqa: S310
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
