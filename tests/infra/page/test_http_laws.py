"""Whatever is asked of the worker's web server, the answer obeys the same laws."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.infra.page.fleet_records import name, step_records
from tests.infra.page.page_server import PageServer, page_server

TOKEN = "a-token-of-sixteen-characters"
PROBES = ("/livez", "/readyz", "/healthz")
KNOWN = (*PROBES, "/metrics", "/", "/static/app.js", "/api/fleet", "/api/events", f"/api/workloads/{name(0)}")
STATUSES = {200, 304, 400, 401, 403, 404, 405, 413, 414, 431, 503}

text = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
paths = st.one_of(
    st.sampled_from(KNOWN),
    text.map(lambda t: "/" + t),
    st.builds("{}{}".format, st.sampled_from(KNOWN), text),
    st.builds("/api/workloads/{}".format, text),
    st.builds("{}?last={}".format, st.sampled_from(KNOWN), text),
    st.sampled_from(
        ("/static/../serve.py", "/%2e%2e/%2e%2e/etc/passwd", "//", "/api/workloads/" + "x" * 4_000, "/%00")
    ),
)
hosts = st.sampled_from(("127.0.0.1", "localhost:80", "[::1]", "evil.example", "127.0.0.1.evil.example", "", "[x"))
headers = st.dictionaries(
    st.sampled_from(
        ("Accept", "Accept-Encoding", "If-None-Match", "Last-Event-ID", "Range", "Origin", "X-Y", "Cookie")
    ),
    text,
    max_size=4,
)
authorizations = st.one_of(st.none(), text, st.just("Bearer wrong"), st.just("Basic eDp4"), st.just("Basic %%%"))


@pytest.fixture(scope="module", params=[None, TOKEN], ids=["open", "token"])
def server(request: pytest.FixtureRequest) -> Iterator[PageServer]:
    with page_server(token=request.param) as made:
        made.fold(*step_records(2, 0))
        yield made


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(("GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X")),
    path=paths,
    host=hosts,
    more=headers,
    authorization=authorizations,
    body=st.none() | st.binary(max_size=3_000),
)
def test_every_answer_obeys_the_laws(
    server: PageServer,
    method: str,
    path: str,
    host: str,
    more: dict[str, str],
    authorization: str | None,
    body: bytes | None,
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=20)
    try:
        connection.putrequest(method, path.replace(" ", ""), skip_host=True)
        connection.putheader("Host", host)
        for key, value in (more | ({"Authorization": authorization} if authorization else {})).items():
            connection.putheader(key, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        content = b"" if "event-stream" in (answer.headers["Content-Type"] or "") else answer.read()
    finally:
        connection.close()
    where = path.partition("?")[0].partition("#")[0]
    assert answer.status in STATUSES, (answer.status, content[:200])
    assert b"Traceback" not in content
    if answer.status == 400 and answer.headers["Content-Security-Policy"] is None:
        return  # no request at all: refused by the HTTP parser, before anything of ours
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert answer.headers["Set-Cookie"] is None
    if method != "GET":
        assert answer.status >= 400
    known = host in ("127.0.0.1", "localhost:80", "[::1]") if server.server._token is None else False
    if answer.status in (200, 304) and not known:
        assert where in PROBES, f"{where} was read without a token, or under a foreign name"


def test_the_server_is_still_there(server: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=20)
    connection.request("GET", "/livez")
    assert connection.getresponse().status == 200
    connection.close()
