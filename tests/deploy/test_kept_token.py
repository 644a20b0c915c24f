"""The token that the chart draws once is kept by upgrades; helm asks a cluster of one Secret for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.deploy.chart import NAMESPACE, RELEASE, of_kind, template
from tests.programs import needs

NAME = f"{RELEASE}-harmony-metrics"
KIND = {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}


@contextmanager
def cluster(data: dict[str, str] | None) -> Iterator[str]:
    """The address of an API server that knows no object but this Secret."""
    known: dict[str, Any] = {
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [KIND]},
    }
    if data is not None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": data,
        }
        known[f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}"] = secret

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = known.get(self.path.partition("?")[0])
            absent = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or absent).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@needs("helm")
@pytest.mark.parametrize(
    ("before", "key", "kept"),
    [
        (None, "token", None),
        ({"token": "b2xk"}, "token", "b2xk"),
        ({"token": "b2xk"}, "bearer", None),  # the key was renamed
        ({}, "token", None),
    ],
)
def test_a_token_is_kept_and_never_empty(before: dict[str, str] | None, key: str, kept: str | None) -> None:
    with cluster(before) as address:
        done = template("--dry-run=server", "--kube-apiserver", address, "--set", f"metricsToken.key={key}")
    assert done.returncode == 0, done.stderr[-2000:]
    (secret,) = of_kind(tuple(d for d in yaml.safe_load_all(done.stdout) if d), "Secret")
    assert secret["data"].keys() == {key}
    assert kept in (None, secret["data"][key])
    assert len(base64.b64decode(secret["data"][key])) == (3 if kept else 40)
