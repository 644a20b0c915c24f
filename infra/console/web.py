"""Addresses of servers as people type them: taken apart, or refused in one sentence; shown without passwords."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from infra.console.errors import HarmonyError
from infra.console.text import printable

# `user:password@`, after the scheme or where there is none.
_CREDENTIALS = re.compile(r"(?:(?<=://)|^)[^/?#]*@")
# Values of a query whose names say that they open something. Other values tell one exporter from another.
_SECRETS = re.compile(r"(?i)(?<=[?&])([^=&#]*(?:auth|credential|key|pass|pwd|secret|sig|token)[^=&#]*=)[^&#]+")
_MOST_CHARS = 200


def shown(url: str) -> str:
    """The address as it may be printed, logged or used as a key: without `user:password@`, tokens and keys.

    >>> shown("http://u:secret@host:9090/metrics?token=secret&part=gpu")
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
    said = shown(url).rpartition("@")[2]
    raise HarmonyError(f"{printable(said, _MOST_CHARS)!r} is no {expected}.", 2)


def _is_one_word(url: str) -> bool:
    return url.isprintable() and " " not in url
