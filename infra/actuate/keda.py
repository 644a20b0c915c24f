"""KEDA's external scaler: the replicas in force as a metric whose target is 1, so that the HPA's sum is our count.

Where no lease is in force every call fails: KEDA then leaves the HPA as it is (or uses the ScaledObject's fallback),
whereas a 0 or an old number would be obeyed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from agents.records import Target
from infra.console.errors import HarmonyError
from infra.console.protobuf import message_classes
from infra.observability.probes import names_loopback

PROTO: Final = Path(__file__).with_name("externalscaler.proto")
PACKAGE: Final = "externalscaler"
SERVICE: Final = "externalscaler.ExternalScaler"
# Method -> (request, response, streamed).
METHODS: dict[str, tuple[str, str, bool]] = {
    "IsActive": ("ScaledObjectRef", "IsActiveResponse", False),
    "StreamIsActive": ("ScaledObjectRef", "IsActiveResponse", True),
    "GetMetricSpec": ("ScaledObjectRef", "GetMetricSpecResponse", False),
    "GetMetrics": ("GetMetricsRequest", "GetMetricsResponse", False),
}


def needed(module: str) -> ModuleType:
    """A module of the extra `keda`.

    Raises:
        HarmonyError: it is not installed (exit code 2).
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise HarmonyError(
            "The KEDA scaler needs grpcio and protobuf: install them with `pip install 'harmony-scaler[keda]'`, or "
            "serve only Prometheus and JSON with --no-grpc.",
            2,
        ) from error


METRIC: Final = "harmony-wanted-replicas"
_STREAM_EVERY_S = 1.0


class NoAnswer(Exception):
    """`unknown`: the ScaledObject names no workload we know; else there is no lease in force."""

    def __init__(self, detail: str, *, unknown: bool = False) -> None:
        super().__init__(detail)
        self.detail, self.unknown = detail, unknown


class Lookup:
    """From what a scaler asks for to the replicas in force.

    Args:
        answer: replicas in force of a workload; None = none.
        targets: of every workload known.
    """

    def __init__(self, answer: Callable[[str], int | None], targets: Callable[[], Mapping[str, Target]]) -> None:
        self._answer, self._targets = answer, targets

    def workload(self, workload: str | None, namespace: str, name: str) -> str:
        """The workload named, else the one whose target has this namespace and name.

        Raises:
            NoAnswer: none, or several.
        """
        targets = self._targets()
        if workload:
            if workload not in targets:
                raise NoAnswer(f"no command of workload {workload} has been seen, and none is declared", unknown=True)
            return workload
        matches = [w for w, t in targets.items() if (t.namespace, t.name) == (namespace, name)]
        if len(matches) != 1:
            raise NoAnswer(
                f"{len(matches)} workloads have the target {namespace}/{name}: name one in the trigger's metadata "
                "(workload: ...)",
                unknown=True,
            )
        return matches[0]

    def replicas(self, workload: str) -> int:
        """Raises NoAnswer when nothing is in force."""
        replicas = self._answer(workload)
        if replicas is None:
            raise NoAnswer(f"no lease is in force for {workload}: hold what there is")
        return replicas


class KedaScaler:
    """The gRPC server.

    Args:
        lookup: answers.
        host, port: to bind; port 0 = any free one, to be read from `port` after `start`.
        tls_cert, tls_key: PEM files of the server.
        tls_client_ca: PEM file; clients must then show a certificate of it.
        insecure: allow clear text beyond loopback.

    Raises:
        HarmonyError: grpcio is missing, clear text beyond loopback, or files that cannot be read.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        host: str = "127.0.0.1",
        port: int = 9466,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        tls_client_ca: Path | None = None,
        insecure: bool = False,
    ) -> None:
        self._grpc: Any = needed("grpc")
        self._aio: Any = needed("grpc.aio")
        self._messages = {
            name.removeprefix(f"{PACKAGE}."): message for name, message in message_classes(PROTO, needed).items()
        }
        self._lookup = lookup
        self._address, self.port = host, port
        if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
            raise HarmonyError("--tls-cert and --tls-key belong together, and --tls-client-ca needs both.", 2)
        if tls_cert is None and not insecure and not names_loopback(host):
            raise HarmonyError(
                f"The scaler would answer in the clear on {host}. Give --tls-cert and --tls-key (and caCert in the "
                "trigger's authentication), or say --insecure where the network is trusted.",
                2,
            )
        self._credentials = self._read_credentials(tls_cert, tls_key, tls_client_ca)
        self._server: Any = None

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            HarmonyError: the port cannot be bound.
        """
        grpc = self._grpc
        server = self._aio.server()
        handlers = {}
        for method, (request, response, streamed) in METHODS.items():
            make = grpc.unary_stream_rpc_method_handler if streamed else grpc.unary_unary_rpc_method_handler
            handlers[method] = make(
                getattr(self, f"_{method}"),
                request_deserializer=partial(_read, self._messages[request]),
                response_serializer=self._messages[response].SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        where = f"[{self._address}]:{self.port}" if ":" in self._address else f"{self._address}:{self.port}"
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(where)
            else:
                self.port = server.add_secure_port(where, self._credentials)
        except RuntimeError as error:
            raise HarmonyError(f"The scaler cannot listen on {where}; choose another --grpc-port.") from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving; streams end at once."""
        if self._server is not None:
            await self._server.stop(grace=0.5)

    async def _IsActive(self, ref: Any, context: Any) -> Any:  # noqa: N802 - named as in the service
        return self._messages["IsActiveResponse"](result=await self._replicas(ref, context) > 0)

    async def _GetMetricSpec(self, ref: Any, context: Any) -> Any:  # noqa: N802
        await self._workload(ref, context)
        spec = self._messages["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return self._messages["GetMetricSpecResponse"](metricSpecs=[spec])

    async def _GetMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.metricName != METRIC:
            await context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, f"the only metric here is {METRIC}")
        replicas = await self._replicas(request.scaledObjectRef, context)
        value = self._messages["MetricValue"](metricName=METRIC, metricValue=replicas, metricValueFloat=float(replicas))
        return self._messages["GetMetricsResponse"](metricValues=[value])

    async def _StreamIsActive(self, ref: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Activity at the start and at each change; while no lease is in force nothing is said, least of all "no"."""
        workload = await self._workload(ref, context)
        last_active: bool | None = None
        while not context.cancelled():
            with suppress(NoAnswer):
                active = self._lookup.replicas(workload) > 0
                if active != last_active:
                    last_active = active
                    yield self._messages["IsActiveResponse"](result=active)
            await asyncio.sleep(_STREAM_EVERY_S)

    async def _workload(self, ref: Any, context: Any) -> str:
        try:
            return self._lookup.workload(ref.scalerMetadata.get("workload"), ref.namespace, ref.name)
        except NoAnswer as error:
            await context.abort(self._grpc.StatusCode.NOT_FOUND, error.detail)
            raise

    async def _replicas(self, ref: Any, context: Any) -> int:
        workload = await self._workload(ref, context)
        try:
            return self._lookup.replicas(workload)
        except NoAnswer as error:
            await context.abort(self._grpc.StatusCode.FAILED_PRECONDITION, error.detail)
            raise

    def _read_credentials(self, cert: Path | None, key: Path | None, client_ca: Path | None) -> Any:
        if cert is None or key is None:
            return None
        try:
            pair = (key.read_bytes(), cert.read_bytes())
            roots = client_ca.read_bytes() if client_ca is not None else None
        except OSError as error:
            raise HarmonyError(f"Cannot read {error.filename}: {error.strerror}.", 2) from error
        return self._grpc.ssl_server_credentials(
            [pair], root_certificates=roots, require_client_auth=client_ca is not None
        )


def _read(message: Any, request: bytes) -> Any:
    """The message; one that asks for nothing where it cannot be read, or the library would log a trace per request."""
    try:
        return message.FromString(request)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        return message()
