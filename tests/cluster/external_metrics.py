"""The place of KEDA's metrics server: asks our external scaler by gRPC, answers the HPA as external.metrics.k8s.io."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from infra.actuate.keda import METRIC, SERVICE
from tests.cluster.cluster import Cluster
from tests.infra.actuate.keda_wire import compiled

GROUP = "external.metrics.k8s.io"
ROOT = f"/apis/{GROUP}/v1beta1"


def asked_by_grpc(port: int, workload: str) -> float | None:
    """What the scaler says of a workload; None where it answers with an error."""
    pb = compiled()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/GetMetrics",
            request_serializer=pb.GetMetricsRequest.SerializeToString,
            response_deserializer=pb.GetMetricsResponse.FromString,
        )
        ref = pb.ScaledObjectRef(name=workload, namespace="prod", scalerMetadata={"workload": workload})
        try:
            answer = call(pb.GetMetricsRequest(scaledObjectRef=ref, metricName=METRIC), timeout=20)
        except grpc.RpcError:
            return None
    return float(answer.metricValues[0].metricValueFloat)


@contextmanager
def metrics_server(cluster: Cluster, value: Callable[[], float | None]) -> Iterator[None]:
    """Serve the metric and have the API server know of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == ROOT:
                resource = {"name": "harmony", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
                self._say(200, {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1beta1", "resources": [resource]})
            elif path.startswith(f"{ROOT}/namespaces/prod/"):
                count = value()
                if count is None:
                    self._say(500, {"kind": "Status", "status": "Failure", "message": "no lease is in force"})
                else:
                    item = {
                        "metricName": path.rsplit("/", 1)[1],
                        "metricLabels": {},
                        "value": f"{round(count * 1000)}m",
                    }
                    item["timestamp"] = "2026-01-01T00:00:00Z"
                    self._say(200, {"kind": "ExternalMetricValueList", "metadata": {}, "items": [item]})
            else:
                self._say(404, {"kind": "Status", "status": "Failure"})

        def _say(self, code: int, body: dict[str, Any]) -> None:
            data = json.dumps({"apiVersion": "v1" if "groupVersion" in body else f"{GROUP}/v1beta1"} | body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cluster.directory / "server.pem", cluster.directory / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with registered(cluster, server.server_port):
            yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def registered(cluster: Cluster, port: int) -> Iterator[None]:
    """While the block runs, the API server passes requests for external metrics on to this port of this machine."""
    meta = {"name": "external-metrics", "namespace": "harmony"}
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**meta, "port": port},
        },
    }
    cluster.create(service)
    try:
        cluster.await_that("the API server passes requests on", lambda: cluster.call("GET", ROOT)["resources"])
        yield
    finally:
        cluster.call("DELETE", f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{GROUP}")
        cluster.call("DELETE", "/api/v1/namespaces/harmony/services/external-metrics")
