"""Every address of every server of ours, taken from the server itself, asked in every way that HTTP and gRPC allow.

What the worker's page promises beyond this is in tests/infra/page/test_http_laws.py.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from time import monotonic
from typing import Any

import grpc
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.actuation.guard import ApplyGuard
from infra.actuate.controller import CommandController
from infra.actuate.keda import METHODS, SERVICE, KedaScaler, Lookup
from infra.actuate.pull import Answers, LeaseGauges, LeaseRoutes
from infra.collect.mapping.readings import Assembler
from infra.collect.publisher import DryRun
from infra.collect.sources import remote_write as remote_write_server
from infra.collect.sources.remote_write import RemoteWriteServer
from infra.observability.health import Health
from infra.observability.probes import ProbeServer
from streams.topics import Topics
from tests.agents.actuation.test_apply_guard import command
from tests.infra.actuate.keda_wire import compiled
from tests.infra.collect.samples import TS_MS, VLLM
from tests.infra.collect.test_remote_write import read_exposition, reader, written
from tests.infra.page.fleet_records import name, step_records
from tests.infra.page.page_server import PageServer

TOKEN = "a-token-of-sixteen-characters"
REFUSALS = {400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 431, 503}
PROBES = ("/livez", "/healthz", "/readyz")
NOTHING_SECRET = {"POST": (), "GET": PROBES}


@dataclass
class Served:
    """A server on loopback: how to speak to it, and what of it may be had without the token."""

    port: int
    addresses: tuple[str, ...]
    method: str = "GET"
    replicas: dict[str, int] = field(default_factory=dict)


@contextmanager
def running(start: Callable[[], Any], stop: Callable[[], Any]) -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own, on which the server lives."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def addresses_of(app: web.Application) -> tuple[str, ...]:
    """Every address registered, variable parts as they are written in the code."""
    return tuple(sorted({resource.canonical for resource in app.router.resources()}))


@contextmanager
def worker() -> Iterator[Served]:
    page, apps = PageServer(token=TOKEN), list[web.Application]()
    page.server._parts = (*page.server._parts, apps.append)
    page.start()
    try:
        page.fold(*step_records(2, 0))
        yield Served(page.server.port, addresses_of(apps[0]))
    finally:
        page.stop()


def leased() -> tuple[CommandController, Lookup]:
    """A workload `w` with 5 replicas in force, and `gone`, whose lease is over."""
    controller = CommandController(Answers("test"), ApplyGuard(), lambda: 1_000)
    told = (command(1, replicas=5), command(1, workload="gone", replicas=7, valid_until_ts_ms=900))
    for c in told:
        asyncio.run(controller.handle(c))
    return controller, Lookup(controller.answer, lambda: controller.targets)


@contextmanager
def actuator() -> Iterator[Served]:
    controller, lookup = leased()
    apps: list[web.Application] = []
    parts = (LeaseRoutes(lookup, TOKEN).add_to, apps.append)
    server = ProbeServer(Health(monotonic()), LeaseGauges(controller), port=0, token=TOKEN, parts=parts)
    with running(server.start, server.stop):
        yield Served(server.port, addresses_of(apps[0]), replicas={"w": 5})


@contextmanager
def receiver(token: str | None = TOKEN) -> Iterator[Served]:
    address: asyncio.Queue[str] = asyncio.Queue()
    stop, ended = asyncio.Event(), list[asyncio.Task[None]]()
    server = RemoteWriteServer(
        Assembler(reader("vllm", workload="w"), 0.5), Topics(), DryRun(StringIO()), "127.0.0.1", 0,
        address.put_nowait, token,
    )  # fmt: skip
    found: list[str] = []

    async def start() -> None:
        ended.append(asyncio.create_task(server.run(stop)))
        found.append(await asyncio.wait_for(address.get(), 20))

    async def end() -> None:
        stop.set()
        await ended[0]

    with running(start, end):
        port = int(found[0].rsplit(":", 1)[-1].partition("/")[0])
        yield Served(port, (remote_write_server.PATH,), "POST")


SERVERS = {"worker": worker, "actuator": actuator, "receiver": receiver}


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with SERVERS[request.param]() as made:
        yield made


def test_every_server_tells_its_addresses() -> None:
    with worker() as page, actuator() as leases:
        assert {*PROBES, "/metrics", "/", "/api/fleet", "/api/events", "/api/health"} <= set(page.addresses)
        assert {*PROBES, "/metrics", "/v1/replicas"} == set(leases.addresses)


def ask(served: Served, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for key, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
            connection.putheader(key, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        endless = "event-stream" in (answer.headers["Content-Type"] or "")
        return answer.status, answer.headers, b"" if endless or method == "HEAD" else answer.read()
    finally:
        connection.close()


printable = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20)
workloads = st.sampled_from(("w", "gone", "nobody", name(0), "", "%00", "..%2f", "w&workload=gone", "é".encode().hex()))
queries = st.one_of(
    st.just(""),
    st.builds("workload={}".format, workloads | printable),
    st.builds("namespace={}&name={}".format, printable, workloads),
    printable,
)
GOOD = written(read_exposition(VLLM, lambda _name: True, TS_MS))
bodies = st.one_of(
    st.just(b""), st.binary(max_size=300), st.sampled_from((GOOD, GOOD[:-9], b"\xff" * 2_000, b"{}" * 700))
)
contents = st.sampled_from(
    ("application/x-protobuf", "text/plain", "application/json", "application/x-protobuf;proto=x")
)
tokens = st.sampled_from((f"Bearer {TOKEN}", f"Bearer {TOKEN}", f"bearer {TOKEN}", "Bearer wrong", "Basic eDp4", ""))
methods = st.sampled_from(("GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), method=methods, query=queries, token=tokens, content=contents, body=bodies, filling=workloads)
def test_every_address_answers_within_the_law(
    served: Served, data: st.DataObject, method: str, query: str, token: str, content: str, body: bytes, filling: str
) -> None:
    path = data.draw(st.sampled_from(served.addresses))
    where = path.replace("{name}", filling or "x").replace("{id}", filling or "x")
    headers = {"Content-Type": content} | ({"Authorization": token} if token else {})
    status, told, answer = ask(served, method, f"{where}?{query}" if query else where, headers, body)
    assert status in {200, 204, 304, *REFUSALS}, (status, answer[:200])
    assert b"Traceback" not in answer
    assert told["Access-Control-Allow-Origin"] is None
    if status < 400:
        assert method == served.method, "no other method does anything"
        assert token.endswith(TOKEN) or where in NOTHING_SECRET[method]
    if (told["Content-Type"] or "").startswith("application/json") and method != "HEAD":
        content_told = json.loads(answer)
        if where == "/v1/replicas":
            assert (status == 200) == ("replicas" in content_told), "an error has no count, not even 0"
            assert status != 200 or content_told["replicas"] == served.replicas[content_told["workload"]]
    if method == "POST" and status == 204:
        assert content.startswith("application/x-protobuf")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
def test_no_web_page_writes_telemetry_through_a_browser(headers: dict[str, str], status: int) -> None:
    """Neither with a body that browsers send unasked, nor by a name of its own that points here."""
    with receiver(token=None) as open_one:
        sent = {"Host": f"127.0.0.1:{open_one.port}", "Content-Type": "application/x-protobuf"} | headers
        assert ask(open_one, "POST", remote_write_server.PATH, sent, GOOD)[0] == status


# KEDA's calls.


@pytest.fixture(scope="module")
def scaler() -> Iterator[grpc.Channel]:
    _, lookup = leased()
    made: list[KedaScaler] = []

    async def start() -> None:
        made.append(KedaScaler(lookup, port=0))
        await made[0].start()

    async def stop() -> None:
        await made[0].stop()

    with running(start, stop), grpc.insecure_channel(f"127.0.0.1:{made[0].port}") as channel:
        yield channel


PB = compiled()
references = st.builds(
    lambda workload, more: PB.ScaledObjectRef(name=workload, namespace="prod", scalerMetadata=more),
    st.sampled_from(("w", "gone", "nobody", "")),
    st.dictionaries(st.sampled_from(("workload", "x")), st.sampled_from(("w", "gone", "nobody", "")), max_size=2),
)
asked = st.one_of(
    st.binary(max_size=60),
    references.map(lambda ref: ref.SerializeToString()),
    st.builds(
        lambda ref, metric: PB.GetMetricsRequest(scaledObjectRef=ref, metricName=metric).SerializeToString(),
        references,
        st.sampled_from(("harmony-wanted-replicas", "another", "")),
    ),
)
LAWFUL = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}


def called(channel: grpc.Channel, method: str, request: bytes) -> bytes | grpc.StatusCode:
    """The answer, the first one of a stream, or how it failed; a stream says nothing while no lease is in force."""
    if not METHODS[method][2]:
        try:
            return bytes(channel.unary_unary(f"/{SERVICE}/{method}", None, None)(request, timeout=20))
        except grpc.RpcError as error:
            return error.code()
    stream = channel.unary_stream(f"/{SERVICE}/{method}", None, None)(request, timeout=0.3)
    try:
        return bytes(next(stream))
    except grpc.RpcError as error:
        silent = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        return grpc.StatusCode.FAILED_PRECONDITION if silent else error.code()
    finally:
        stream.cancel()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(sorted(METHODS)), request=asked)
def test_keda_gets_a_count_in_force_or_a_failure(
    scaler: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str, request: bytes
) -> None:
    told = called(scaler, method, request)
    assert not caplog.records, "nobody may fill the log from outside"
    if not isinstance(told, bytes):
        assert told in LAWFUL
        return
    answer = getattr(PB, METHODS[method][1]).FromString(told)
    if method == "GetMetrics":
        assert [v.metricValueFloat for v in answer.metricValues] == [5.0]
    elif method != "GetMetricSpec":
        assert answer.result
