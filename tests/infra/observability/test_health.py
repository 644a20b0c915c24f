"""Probes: what `Health` says by a hand clock, and what a real server on a free port answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.console.errors import HarmonyError
from infra.observability.health import NOT_REPORTED, Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.probes import ProbeServer

BOUND_S = 10.0


def test_a_worker_that_never_beats_is_seen() -> None:
    health = Health(100.0, max_heartbeat_age_s=BOUND_S)
    assert health.snapshot(110.0).live
    late = health.snapshot(110.1)
    assert not late.live
    assert not late.ready
    assert late.live_reason == "no heartbeat since the start for 10.1 s, the bound is 10 s"


def test_one_stage_that_stands_still_costs_life_and_readiness() -> None:
    health = Health(0.0, max_heartbeat_age_s=BOUND_S)
    health.beat("ingest", 5.0)
    health.beat("decide", 20.0)
    assert health.snapshot(15.0).live
    snapshot = health.snapshot(21.0)
    assert not snapshot.live
    assert not snapshot.ready
    assert snapshot.live_reason == "ingest: no progress for 16.0 s, the bound is 10 s"
    assert snapshot.heartbeat_age_s == {"decide": 1.0, "ingest": 16.0}
    assert [(c.name, c.detail) for c in snapshot.checks] == [("heartbeat.ingest", "no sign of life for 16.0 s")]
    health.stop_beat("ingest")
    assert health.snapshot(21.0).ready


def test_heartbeats_never_go_back() -> None:
    health = Health(0.0, max_heartbeat_age_s=BOUND_S)
    health.beat("ingest", 50.0)
    health.beat("ingest", 1.0)
    assert health.snapshot(51.0).heartbeat_age_s == {"ingest": 1.0}
    assert health.snapshot(0.0).heartbeat_age_s == {"ingest": 0.0}


def test_expected_checks_are_not_ok_until_set_and_optional_ones_do_not_count() -> None:
    health = Health(0.0, expected=("assigned", "telemetry"))
    assert {c.name: c.detail for c in health.snapshot(0.0).checks} == dict.fromkeys(
        ("assigned", "telemetry"), NOT_REPORTED
    )
    health.set_check("assigned", ok=True, detail="4 partitions")
    health.set_check("telemetry", ok=False, detail="waiting for telemetry")
    assert not health.snapshot(0.0).ready
    health.set_check("telemetry", ok=True)
    health.set_check("sources", ok=False, detail="gpu is silent", required=False)
    snapshot = health.snapshot(0.0)
    assert snapshot.ready
    assert [(c.name, c.ok) for c in snapshot.checks] == [("assigned", True), ("sources", False), ("telemetry", True)]
    health.drop_check("sources")
    assert [c.name for c in health.snapshot(0.0).checks] == ["assigned", "telemetry"]


def test_who_asks_is_told_what_is_so_at_that_moment() -> None:
    health, restored = Health(0.0, expected=("restored",)), [False]
    health.look = lambda: health.set_check("restored", restored[0])
    assert not health.snapshot(1.0).ready
    restored[0] = True
    assert health.snapshot(1.0).ready


def test_a_bound_that_is_no_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="max_heartbeat_age_s must be positive"):
        Health(0.0, max_heartbeat_age_s=0.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


Get = Callable[..., Awaitable[tuple[int, Any, dict[str, str]]]]


def serve(test: Callable[[ProbeServer, Health, Clock, Get], Awaitable[None]], **options: Any) -> None:
    """Run the test against a real server on a free port."""

    async def run() -> None:
        clock = Clock()
        health = Health(0.0, expected=("assigned",), max_heartbeat_age_s=BOUND_S)
        server = ProbeServer(health, PrometheusMeter(strict=True), port=0, clock=clock, **options)
        await server.start()
        try:
            async with aiohttp.ClientSession() as session:

                async def get(path: str, method: str = "GET", **headers: str) -> tuple[int, Any, dict[str, str]]:
                    sent = {name.replace("_", "-"): value for name, value in headers.items()}
                    url = server.url.replace("0.0.0.0", "127.0.0.1") + path
                    async with session.request(method, url, headers=sent, allow_redirects=False) as response:
                        json = response.content_type == "application/json"
                        body = await (response.json() if json else response.text())
                        return response.status, body, dict(response.headers)

                await test(server, health, clock, get)
        finally:
            await server.stop()
            await server.stop()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_livez_follows_the_heartbeats() -> None:
    async def check(_server: ProbeServer, health: Health, clock: Clock, get: Get) -> None:
        health.beat("ingest", 0.0)
        clock.now_s = 10.0
        status, body, _ = await get("/livez")
        assert (status, body) == (200, {"status": "ok", "reason": "", "heartbeat_age_s": {"ingest": 10.0}})
        clock.now_s = 10.5
        for path in ("/livez", "/healthz"):
            status, body, _ = await get(path)
            assert (status, body["status"]) == (503, "stalled")
            assert body["reason"] == "ingest: no progress for 10.5 s, the bound is 10 s"

    serve(check)


def test_readyz_tells_what_is_missing() -> None:
    async def check(_server: ProbeServer, health: Health, _clock: Clock, get: Get) -> None:
        health.beat("ingest", 0.0)
        health.set_check("telemetry", ok=False, detail="waiting for telemetry")
        status, body, _ = await get("/readyz")
        assert (status, body["status"]) == (503, "not ready")
        assert body["reason"] == "assigned: not reported yet; telemetry: waiting for telemetry"
        assert body["checks"]["telemetry"] == {"ok": False, "detail": "waiting for telemetry", "required": True}
        health.set_check("assigned", ok=True)
        health.set_check("telemetry", ok=True)
        status, body, _ = await get("/readyz")
        assert (status, body["status"], body["reason"]) == (200, "ready", "")

    serve(check)


def test_metrics_is_an_exact_route_in_both_formats() -> None:
    async def check(_server: ProbeServer, _health: Health, _clock: Clock, get: Get) -> None:
        status, body, headers = await get("/metrics")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "harmony_slots" in {family.name for family in text_string_to_metric_families(body)}
        _, body, headers = await get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")
        assert (await get("/metrics/"))[0] == 404

    serve(check)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/absent"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "HEAD"])
def test_every_answer_is_read_only_and_carries_the_safe_headers(path: str, method: str) -> None:
    async def check(_server: ProbeServer, _health: Health, _clock: Clock, get: Get) -> None:
        status, _, headers = await get(path, method=method)
        assert status == 404 if path == "/absent" else method == "GET" or status == 405
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Server"] == "harmony"

    serve(check)


def test_a_web_page_cannot_read_through_a_name_that_points_here() -> None:
    async def check(_server: ProbeServer, _health: Health, _clock: Clock, get: Get) -> None:
        assert (await get("/metrics", Host="evil.example:80"))[0] == 403
        assert "checks" not in (await get("/readyz", Host="evil.example"))[1]
        for name in ("localhost", "localhost:9", "127.0.0.1", "[::1]:80"):
            assert (await get("/metrics", Host=name))[0] == 200
        assert (await get("/metrics", Host="[broken"))[0] in (400, 403)

    serve(check)


def test_a_token_opens_the_details_and_probes_work_without() -> None:
    async def check(_server: ProbeServer, health: Health, _clock: Clock, get: Get) -> None:
        health.set_check("assigned", ok=True)
        status, body, _ = await get("/readyz")
        assert (status, body) == (200, {"status": "ready"})
        status, _, headers = await get("/metrics", Authorization="Bearer wrong")
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await get("/metrics"))[0] == 401
        assert (await get("/metrics", Authorization="Bearer s3cret"))[0] == 200
        assert "checks" in (await get("/readyz", Authorization="Bearer s3cret"))[1]

    serve(check, host="0.0.0.0", token="s3cret")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_an_open_address_needs_a_token(host: str) -> None:
    for token in (None, ""):
        with pytest.raises(HarmonyError, match="set a token") as refused:
            ProbeServer(Health(0.0), PrometheusMeter(), host=host, token=token)
        assert refused.value.exit_code == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    ProbeServer(Health(0.0), PrometheusMeter(), host=host)


def test_a_port_in_use_is_named() -> None:
    async def start(port: int) -> None:
        await ProbeServer(Health(0.0), PrometheusMeter(), port=port).start()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HarmonyError, match=f"port {port} on 127.0.0.1 is in use"):
            asyncio.run(start(port))


def test_a_foreign_address_is_named() -> None:
    server = ProbeServer(Health(0.0), PrometheusMeter(), host="192.0.2.1", port=0, token="t")
    with pytest.raises(HarmonyError, match=r"192\.0\.2\.1 is no address of this machine"):
        asyncio.run(server.start())
