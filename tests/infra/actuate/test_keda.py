"""The external scaler over real gRPC, with messages that protoc compiled from the proto file; the JSON; the gauges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from agents.actuation.guard import ApplyGuard, Overrides
from agents.records import Pin
from infra.actuate import keda as keda_messages
from infra.actuate.controller import CommandController
from infra.actuate.keda import METRIC, KedaScaler, Lookup
from infra.actuate.pull import SERIES, Answers, LeaseGauges, LeaseRoutes
from infra.console.errors import HarmonyError
from infra.observability.health import Health
from infra.observability.probes import ProbeServer
from tests.agents.actuation.test_apply_guard import command
from tests.infra.actuate.keda_wire import compiled

TOKEN = "t0ken"


class Side:
    """A controller that answers, with a clock."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.controller = CommandController(Answers("keda"), ApplyGuard(), lambda: self.now_ms)
        self.lookup = Lookup(self.controller.answer, lambda: self.controller.targets)

    async def give(self, sequence: int, replicas: int, **changes: object) -> None:
        await self.controller.handle(command(sequence, replicas=replicas, **changes))


@pytest.fixture
def side() -> Side:
    return Side()


@pytest.fixture
async def keda(side: Side) -> AsyncIterator[Any]:
    """A client as KEDA is one, made from the compiled file alone."""
    scaler = KedaScaler(side.lookup, port=0)
    await scaler.start()
    pb = compiled()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{scaler.port}") as channel:

        class Client:
            ref = staticmethod(lambda **m: pb.ScaledObjectRef(name="w", namespace="prod", scalerMetadata=m))

            @staticmethod
            def call(method: str, request: Any, answer: str, streamed: bool = False) -> Any:
                make = channel.unary_stream if streamed else channel.unary_unary
                path = f"/{keda_messages.SERVICE}/{method}"
                decode = getattr(pb, answer).FromString
                return make(path, type(request).SerializeToString, decode)(request, timeout=20)

            @classmethod
            async def metric(cls, **metadata: str) -> float:
                request = pb.GetMetricsRequest(scaledObjectRef=cls.ref(**metadata), metricName=METRIC)
                (value,) = (await cls.call("GetMetrics", request, "GetMetricsResponse")).metricValues
                return float(value.metricValueFloat)

        yield Client
    await scaler.stop()


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code()


async def test_the_metric_is_the_count_and_its_target_is_one(side: Side, keda: Any) -> None:
    await side.give(1, 5)
    assert await keda.metric(workload="w") == 5.0
    spec = await keda.call("GetMetricSpec", keda.ref(), "GetMetricSpecResponse")
    (only,) = spec.metricSpecs
    assert (only.metricName, only.targetSize, only.targetSizeFloat) == (METRIC, 1, 1.0)
    assert (await keda.call("IsActive", keda.ref(), "IsActiveResponse")).result is True


async def test_without_a_lease_it_is_an_error_and_never_zero_or_the_last_value(side: Side, keda: Any) -> None:
    await side.give(1, 5)
    side.now_ms = 10_000
    assert await code_of(keda.metric(workload="w")) is grpc.StatusCode.FAILED_PRECONDITION
    active = keda.call("IsActive", keda.ref(), "IsActiveResponse")
    assert await code_of(active) is grpc.StatusCode.FAILED_PRECONDITION
    await side.give(2, 7, expected=5, valid_until_ts_ms=20_000)
    assert await keda.metric(workload="w") == 7.0
    side.controller.guard.set_overrides(Overrides(stopped="x"), side.now_ms)
    assert await code_of(keda.metric(workload="w")) is grpc.StatusCode.FAILED_PRECONDITION
    side.controller.guard.set_overrides(Overrides(stopped="x", pins={"w": Pin(9)}), side.now_ms)
    assert await keda.metric(workload="w") == 9.0


async def test_a_workload_is_found_by_name_or_by_its_target(side: Side, keda: Any) -> None:
    await side.give(1, 5)
    assert await keda.metric() == 5.0, "namespace and name of the ScaledObject are those of the target"
    assert await code_of(keda.metric(workload="nobody")) is grpc.StatusCode.NOT_FOUND
    await side.give(1, 6, workload="v")
    assert await code_of(keda.metric()) is grpc.StatusCode.NOT_FOUND, "two workloads have that target"


async def test_another_metric_is_refused(side: Side, keda: Any) -> None:
    await side.give(1, 5)
    request = compiled().GetMetricsRequest(scaledObjectRef=keda.ref(), metricName="else")
    call = keda.call("GetMetrics", request, "GetMetricsResponse")
    assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_activity_is_pushed_at_each_change_and_never_made_up(
    side: Side, keda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.actuate.keda._STREAM_EVERY_S", 0.005)
    await side.give(1, 5)
    stream = keda.call("StreamIsActive", keda.ref(), "IsActiveResponse", streamed=True)
    assert (await stream.read()).result is True
    await side.give(2, 0, expected=5)
    assert (await stream.read()).result is False
    await side.give(3, 4, expected=0)
    assert (await stream.read()).result is True
    side.now_ms = 10_000  # the lease runs out: nothing may be said
    waiting = asyncio.ensure_future(stream.read())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    await side.give(4, 0, expected=4, valid_until_ts_ms=20_000)
    assert (await waiting).result is False


async def test_over_tls_only_holders_of_a_certificate_are_answered(side: Side, tmp_path: Path) -> None:
    from tests.infra.actuate.certificates import make

    files = make(tmp_path)
    await side.give(1, 5)
    scaler = KedaScaler(
        side.lookup, port=0, tls_cert=files["server.pem"], tls_key=files["server.key"], tls_client_ca=files["ca.pem"]
    )
    await scaler.start()
    pb = compiled()
    request = pb.GetMetricsRequest(scaledObjectRef=pb.ScaledObjectRef(name="w", namespace="prod"), metricName=METRIC)
    ca, key, cert = (files[name].read_bytes() for name in ("ca.pem", "client.key", "client.pem"))

    async def ask(credentials: grpc.ChannelCredentials) -> float:
        async with grpc.aio.secure_channel(f"localhost:{scaler.port}", credentials) as channel:
            call = channel.unary_unary(
                f"/{keda_messages.SERVICE}/GetMetrics",
                pb.GetMetricsRequest.SerializeToString,
                pb.GetMetricsResponse.FromString,
            )
            return float((await call(request, timeout=20)).metricValues[0].metricValueFloat)

    try:
        assert await ask(grpc.ssl_channel_credentials(ca, key, cert)) == 5.0
        assert await code_of(ask(grpc.ssl_channel_credentials(ca))) is grpc.StatusCode.UNAVAILABLE
    finally:
        await scaler.stop()


def test_clear_text_beyond_loopback_must_be_wanted(side: Side) -> None:
    with pytest.raises(HarmonyError, match="in the clear"):
        KedaScaler(side.lookup, host="0.0.0.0")
    KedaScaler(side.lookup, host="0.0.0.0", insecure=True)
    with pytest.raises(HarmonyError, match="belong together"):
        KedaScaler(side.lookup, tls_cert=Path("x"))


def test_without_grpcio_one_sentence_names_the_extra(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(keda_messages, "import_module", gone)
    with pytest.raises(HarmonyError, match=r"harmony-scaler\[keda\]"):
        KedaScaler(side.lookup)


@pytest.fixture
async def web(side: Side) -> AsyncIterator[str]:
    gauges = LeaseGauges(side.controller)
    health = Health(monotonic())
    routes = LeaseRoutes(side.lookup, TOKEN)
    server = ProbeServer(health, gauges, port=0, token=TOKEN, parts=(routes.add_to,))
    await server.start()
    yield server.url
    await server.stop()


async def get(url: str, token: str | None = TOKEN) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with ClientSession(headers=headers) as session, session.get(url) as response:
        return response.status, await response.json(content_type=None) if "replicas" in url else await response.text()


async def test_the_json_has_a_number_or_an_error_status(side: Side, web: str) -> None:
    url = f"{web}/v1/replicas"
    assert (await get(f"{url}?workload=w"))[0] == 404
    await side.give(1, 5)
    assert await get(f"{url}?workload=w") == (200, {"workload": "w", "replicas": 5})
    assert await get(f"{url}?namespace=prod&name=w") == (200, {"workload": "w", "replicas": 5})
    side.now_ms = 10_000
    status, body = await get(f"{url}?workload=w")
    assert (status, "replicas" in body) == (503, False)
    assert (await get(f"{url}?workload=w", token=None))[0] == 401
    assert (await get(f"{url}?workload=w", token="wrong"))[0] == 401


async def series(web: str) -> dict[str, dict[tuple[str, ...], float]]:
    _, text = await get(f"{web}/metrics")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_gauges_are_there_as_long_as_the_lease_is(side: Side, web: str) -> None:
    assert "harmony_wanted_replicas" not in await series(web)
    await side.give(1, 5)
    found = await series(web)
    assert found["harmony_wanted_replicas"] == {("Deployment", "w", "prod", "w"): 5.0}
    assert found["harmony_lease_valid_until_seconds"] == {("w",): 10.0}
    assert set(found) == {name for name, *_ in SERIES}
    side.now_ms = 10_000
    assert "harmony_wanted_replicas" not in await series(web)
    side.controller.guard.set_overrides(Overrides(pins={"w": Pin(9)}), side.now_ms)
    found = await series(web)
    assert found["harmony_wanted_replicas"] == {("Deployment", "w", "prod", "w"): 9.0}
    assert found["harmony_lease_valid_until_seconds"] == {("w",): float("inf")}
