"""TLS of a worker's page and metrics, and of whom a certificate makes known."""

from __future__ import annotations

import ssl

from aiohttp import web

from infra.console.errors import HarmonyError
from infra.settings.schema import WorkerSection


def web_tls(section: WorkerSection) -> ssl.SSLContext | None:
    """What the worker's web server speaks TLS with; None = plain HTTP.

    Clients may come without a certificate, since a kubelet has none: it reads status codes and nothing else.

    Raises:
        HarmonyError: a file cannot be read, or is no certificate or key.
    """
    if section.web_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.web_certfile, section.web_keyfile)
        if section.web_client_cafile is not None:
            context.load_verify_locations(section.web_client_cafile)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        files = (section.web_certfile, section.web_keyfile, section.web_client_cafile)
        named = error.filename or ", ".join(file for file in files if file)
        raise HarmonyError(
            f"Cannot use {named} of advanced.worker: {error.strerror or error}. Check the path and its rights.", 2
        ) from error
    return context


def shows_certificate(request: web.Request) -> bool:
    """Whether the client has proven to hold a certificate that our authority signed."""
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))
