"""Worlds for the conformance kit in which our adapters act for real: HTTP receivers, an API server, a gRPC client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from infra.actuate.actuator import Actuator
from infra.actuate.conformance.kit import ABILITIES, Ability
from infra.actuate.conformance.subjects import PullWorld
from infra.actuate.controller import CommandController
from infra.actuate.keda import METRIC, SERVICE, KedaScaler, Lookup
from infra.actuate.kubernetes import Kubernetes
from infra.actuate.kubernetes_api import Access, KubernetesApi
from infra.actuate.webhook import Webhook
from tests.infra.actuate.api_server import ApiServer
from tests.infra.actuate.keda_wire import compiled
from tests.infra.actuate.receiver import Receiver

KEY = b"a secret of more than sixteen bytes"


class KubernetesWorld:
    """Deployments of a pretended API server that keeps Kubernetes' rules of resource versions."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"answers"}

    async def open(self, replicas: Mapping[str, int]) -> None:
        self.server = ApiServer()
        for workload, count in replicas.items():
            self.server.add("apps/v1", "deployments", "Deployment", "prod", workload, count)
        await self.server.start()
        self._api = await KubernetesApi(Access(self.server.url)).__aenter__()

    def actuator(self, clock: Callable[[], int]) -> Actuator:
        return Kubernetes(self._api)

    async def settle(self, controller: CommandController) -> None:
        pass

    async def replicas(self, workload: str) -> int:
        return self.server.replicas("prod", workload)

    async def change(self, workload: str, replicas: int) -> None:
        self.server.set("prod", workload, replicas)

    async def close(self) -> None:
        await self._api.__aexit__()
        await self.server.stop()


class WebhookWorld:
    """A receiver that checks signatures, and does what it is told once."""

    abilities: frozenset[Ability] = frozenset(ABILITIES) - {"answers", "changes"}

    async def open(self, replicas: Mapping[str, int]) -> None:
        self.receiver = Receiver(KEY, dict(replicas))
        await self.receiver.start()
        self._webhooks: list[Webhook] = []

    def actuator(self, clock: Callable[[], int]) -> Actuator:
        async def no_sleep(_seconds: float) -> None:
            await asyncio.sleep(0)

        self._webhooks.append(Webhook(self.receiver.url, KEY, "fleet", clock, sleep=no_sleep))
        return self._webhooks[-1]

    async def settle(self, controller: CommandController) -> None:
        pass

    async def replicas(self, workload: str) -> int:
        return self.receiver.counts[workload]

    async def change(self, workload: str, replicas: int) -> None:
        self.receiver.counts[workload] = replicas

    async def close(self) -> None:
        for webhook in self._webhooks:
            await webhook.close()
        await self.receiver.stop()


class KedaWorld(PullWorld):
    """An HPA that asks through KEDA: real gRPC, with messages compiled from the proto file by protoc."""

    async def open(self, replicas: Mapping[str, int]) -> None:
        import grpc.aio

        await super().open(replicas)
        self._controller: CommandController | None = None
        self._scaler = KedaScaler(Lookup(lambda w: self._now().answer(w), lambda: self._now().targets), port=0)
        await self._scaler.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._scaler.port}")

    async def ask(self, controller: CommandController, workload: str) -> int | None:
        import grpc

        self._controller = controller
        pb = compiled()
        call = self._channel.unary_unary(
            f"/{SERVICE}/GetMetrics",
            request_serializer=pb.GetMetricsRequest.SerializeToString,
            response_deserializer=pb.GetMetricsResponse.FromString,
        )
        ref = pb.ScaledObjectRef(name=workload, namespace="prod")
        try:
            answer = await call(pb.GetMetricsRequest(scaledObjectRef=ref, metricName=METRIC), timeout=20)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise
        (value,) = answer.metricValues
        assert value.metricValue == value.metricValueFloat
        return int(value.metricValue)

    async def close(self) -> None:
        await self._channel.close()
        await self._scaler.stop()

    def _now(self) -> CommandController:
        assert self._controller is not None
        return self._controller
