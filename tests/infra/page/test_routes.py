"""What the page's server answers: files, JSON, events, refusals."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import orjson
import pytest

import infra.page
from infra.page.live import LiveFleet, Peer, PolicyBoard, PolicyLine, WorkerStatus, announced, peers_of, policies_of
from infra.page.server import MAX_READERS, load_assets
from tests.infra.page.fleet_records import name, step_records
from tests.infra.page.page_server import PageServer, page_server

STATIC = Path(infra.page.__file__).parent / "static"


def get(server: PageServer, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=20)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def events(server: PageServer, count: int, last: str = "") -> list[dict[str, Any]]:
    """The first `fleet` events of a new reader, with their ids."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=20)
    connection.request("GET", "/api/events", headers={"Last-Event-ID": last} if last else {})
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream"
    found: list[dict[str, Any]] = []
    lines: dict[str, str] = {}
    while len(found) < count:
        line = response.fp.readline().decode().rstrip("\n")
        if line:
            field, _, value = line.partition(": ")
            lines[field] = value
        else:
            if lines.get("event") == "fleet":
                found.append({"id": lines["id"], **orjson.loads(lines["data"])})
            lines = {}
    connection.close()
    return found


def test_assets_are_small_and_fetch_nothing_from_elsewhere() -> None:
    assets = load_assets()
    assert sum(len(asset.body) for asset in assets.values()) < 150_000
    for file, asset in assets.items():
        if file.startswith("uplot."):
            continue
        text = asset.body.decode()
        assert not re.search(r"""(?:src|href|url\(|import|fetch\()\s*=?\s*['"(]?(?:https?:)?//""", text), file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), file
        assert "\n" in text
    assert "MIT" in (STATIC / "uplot.LICENSE").read_text()


def test_addresses_are_relative_so_that_a_proxy_may_serve_the_page_below_a_path() -> None:
    for file, asset in load_assets().items():
        if file.endswith((".html", ".js", ".css")) and not file.startswith("uplot"):
            assert not re.findall(r"""["'`(]/[a-z]+""", asset.body.decode()), file


def test_headers_forbid_everything_but_the_pages_own_files() -> None:
    with page_server() as server:
        views = ("/api/fleet", "/api/health", "/api/dead-letters", "/api/settings")
        for path in ("/", "/static/app.js", *views, "/api/workloads/none", "/static/none"):
            response, _ = get(server, path)
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "Access-Control-Allow-Origin" not in response.headers


def test_probes_keep_their_own_stricter_policy() -> None:
    with page_server() as server:
        response, _ = get(server, "/livez")
        assert response.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_files_are_packed_and_not_sent_twice() -> None:
    with page_server() as server:
        plain, body = get(server, "/static/app.js")
        packed, small = get(server, "/static/app.js", Accept_Encoding="gzip")
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(small) == body
        assert plain.headers["Content-Type"].startswith("text/javascript")
        again, nothing = get(server, "/static/app.js", If_None_Match=plain.headers["ETag"])
        assert (again.status, nothing) == (304, b"")


@pytest.mark.parametrize("path", ["/static/../serve.py", "/static/%2e%2e%2fserve.py", "/static/serve.py", "/other"])
def test_nothing_else_can_be_read(path: str) -> None:
    with page_server() as server:
        assert get(server, path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_page_only_reads(method: str) -> None:
    with page_server() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server.port, timeout=20)
        connection.request(method, "/api/fleet", body=b"{}")
        assert connection.getresponse().status == 405
        connection.close()


def test_another_name_for_this_machine_is_refused() -> None:
    with page_server() as server:
        response, body = get(server, "/api/fleet", Host="evil.example")
        assert response.status == 403
        assert json.loads(body)["hint"]


def test_with_a_token_browsers_give_it_as_a_password() -> None:
    with page_server(token="s3cret") as server:
        refused, _ = get(server, "/")
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic")
        for bad in ("Basic ???", "Basic eDp5", "Bearer nope", "Basic /w=="):
            assert get(server, "/api/fleet", Authorization=bad)[0].status == 401
            assert get(server, "/metrics", Authorization=bad)[0].status == 401
            assert "checks" not in json.loads(get(server, "/readyz", Authorization=bad)[1])
        for good in ("Basic eDpzM2NyZXQ=", "Bearer s3cret"):  # x:s3cret
            assert get(server, "/api/fleet", Authorization=good)[0].status == 200
            # The page links to both, and a browser answers with what it was told for the page.
            assert get(server, "/metrics", Authorization=good)[0].status == 200
            assert "checks" in json.loads(get(server, "/readyz", Authorization=good)[1])


def test_json_of_fleet_and_workload() -> None:
    with page_server() as server:
        for step in range(3):
            server.fold(*step_records(2, step))
        fleet = json.loads(get(server, "/api/fleet")[1])
        assert [row["id"] for row in fleet["rows"]] == [name(0), name(1)]
        assert fleet["reset"] is True
        by_id = json.loads(get(server, "/api/workloads/" + name(0).replace("/", "%2F"))[1])
        assert by_id["id"] == name(0)
        assert json.loads(get(server, "/api/workloads/" + name(0))[1]) == by_id
        assert json.loads(get(server, f"/api/workloads/~{by_id['key']}")[1]) == by_id
        missing, body = get(server, "/api/workloads/none")
        assert missing.status == 404
        assert set(json.loads(body)) == {"error", "hint"}


def test_events_tell_everything_once_then_only_changes() -> None:
    with page_server(boot="aa") as server:
        server.fold(*step_records(3, 0))
        (first,) = events(server, 1)
        assert first["reset"] is True
        assert len(first["rows"]) == 3
        changed = [record for record in step_records(1, 1) if record[0].endswith("decisions")]
        server.fold(*changed)
        (delta,) = events(server, 1, last=first["id"])
        assert delta["reset"] is False
        assert [row["id"] for row in delta["rows"]] == [name(0)]
        (nothing,) = events(server, 1, last=delta["id"])
        assert nothing["rows"] == []


@pytest.mark.parametrize("last", ["bb:1", "aa:999999", "aa:x", "aa", ":", "aa:-1", "x" * 4000])
def test_a_reader_from_another_life_starts_anew(last: str) -> None:
    with page_server(boot="aa") as server:
        server.fold(*step_records(1, 0))
        assert events(server, 1, last=last)[0]["reset"] is True


def test_too_many_readers_are_refused_and_room_comes_back() -> None:
    with page_server() as server, ExitStack() as readers:
        server.fold(*step_records(1, 0))
        for _ in range(MAX_READERS):
            reader = readers.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.server.port)))
            reader.request("GET", "/api/events")
            assert readers.enter_context(reader.getresponse()).status == 200
        response, body = get(server, "/api/events")
        assert response.status == 503
        assert "open already" in json.loads(body)["error"]
        assert get(server, "/api/fleet")[0].status == 200
        readers.close()
        until = monotonic() + 60
        step = 1
        while len(server.routes._readers) == MAX_READERS:
            assert monotonic() < until, "no reader has left"
            server.fold(*step_records(1, step))
            step += 1
            sleep(0.05)
        assert len(events(server, 1)) == 1


async def test_rows_are_encoded_once_for_all_readers() -> None:
    server = PageServer()
    for topic, value in step_records(5, 0):
        server.memory.fold(topic, value)
    live = LiveFleet(server.memory, lambda: WorkerStatus("f", "all", "w", "0", "live"))
    await asyncio.gather(live.message(None), live.message(None))
    encoded = dict(live._rows)
    await live.message(None)
    assert all(live._rows[w][1] is encoded[w][1] for w in encoded)


def test_workers_of_the_same_topics_know_each_other(tmp_path: Path) -> None:
    with announced(tmp_path, "http://127.0.0.1:1", "ingest", "a", "k:9092 h.") as own:
        assert peers_of(tmp_path, own) == []
        other = Peer("http://127.0.0.1:2", "decide", "b", own.topics, own.pid, own.born)
        folder = tmp_path / "pages"
        as_text = json.dumps({f: getattr(other, f) for f in Peer.__slots__})
        (folder / "other.json").write_text(as_text.replace(f'"pid": {own.pid}', '"pid": 1').replace(own.born, ""))
        (folder / "broken.json").write_text("{")
        (folder / "shape.json").write_text('{"url": 1}')
        # Process 1 is alive, but its birth mark is another one: the file is of a process that is gone.
        assert peers_of(tmp_path, own) == []
        assert [p.name for p in folder.iterdir()] == [f"{own.pid}.json"]
        me = Peer("http://127.0.0.1:3", "all", "c", own.topics, 1, "")
        assert peers_of(tmp_path, me) == [own]
        assert peers_of(tmp_path, Peer("http://127.0.0.1:3", "all", "c", "elsewhere h.", 1, "")) == []
    assert list(folder.iterdir()) == []


def test_the_policies_of_a_demo_are_told_while_it_plays(tmp_path: Path) -> None:
    figures = [PolicyLine("harmony", 1.5, 0.99, 4.5), PolicyLine("hpa")]
    assert policies_of(tmp_path) == []
    with PolicyBoard(tmp_path) as board:
        board.write(figures)
        assert policies_of(tmp_path) == figures
        file = tmp_path / "pages/policies"
        whole = file.read_text()
        for broken in ("{", "[]", whole.replace("1.5", '"x"'), whole.replace('"hpa"', "7"), whole.replace("cost", "c")):
            file.write_text(broken)
            assert policies_of(tmp_path) == []
        # Process 1 is alive, but it is not the one that wrote.
        file.write_text(re.sub(r'"pid": \d+', '"pid": 1', whole))
        assert policies_of(tmp_path) == []
        with announced(tmp_path, "http://127.0.0.1:1", "all", "a", "t") as own:
            assert peers_of(tmp_path, own) == []
        assert file.exists(), "it is none of the workers' files"
    assert not file.exists()
    PolicyBoard(file / "no").write(figures)


def test_an_unwritable_state_directory_harms_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with announced(file, "http://127.0.0.1:1", "all", "a", "t") as own:
        assert peers_of(file, own) == []
