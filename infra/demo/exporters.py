"""Metrics pages of the demo's fleet in real time, without GPUs: `python -m infra.demo.exporters`.

One page of metrics: vLLM's of every engine, the DCGM exporter's of every device, kube-state-metrics' of every
Deployment, with the labels that Prometheus adds in Kubernetes. An HPA, not HARMONY, scales this fleet, so that there is
something to observe.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic
from typing import Any

import orjson

from infra.demo.workloads import demo_workloads
from infra.simulator.closed_loop import ClosedLoop, SimulatedWorkload
from infra.simulator.shadows import HPA
from infra.simulator.telemetry import TelemetrySampler

DEFAULT_PORT = 8000
# Simulated time before the first scrape, and the longest step after it.
PAST_S = 1_800.0
_STEP_S = 1.0
_MIB = 1 << 20
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
# Engine: ours -> vLLM's name. Devices: ours -> DCGM's name and its unit in ours.
_VLLM = {
    "num_requests_running": "vllm:num_requests_running",
    "num_requests_waiting": "vllm:num_requests_waiting",
    "kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "prompt_tokens_total": "vllm:prompt_tokens_total",
    "generation_tokens_total": "vllm:generation_tokens_total",
    "requests_finished_total": "vllm:request_success_total",
}
_VLLM_HISTOGRAMS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "tpot_s": "vllm:request_time_per_output_token_seconds",
}
_DCGM = {
    "sm_active_ratio": ("DCGM_FI_PROF_SM_ACTIVE", 1),
    "tensor_active_ratio": ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1),
    "memory_used_bytes": ("DCGM_FI_DEV_FB_USED", _MIB),
    "memory_total_bytes": ("DCGM_FI_DEV_FB_TOTAL", _MIB),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", 1),
}
_KUBE = {
    "replicas_desired": "kube_deployment_spec_replicas",
    "replicas_ready": "kube_deployment_status_replicas_ready",
}


class ExportedWorkload:
    """One simulated service under an HPA, and what its exporters say of it now."""

    def __init__(self, workload: SimulatedWorkload, seed: int) -> None:
        loop = ClosedLoop(workload, seed, 0, _STEP_S, PAST_S / 3, PAST_S)
        (self._scaled,) = (shadow for shadow in loop.shadows if shadow.policy == HPA)
        self._source, self._fed_s = workload.source, 0.0
        cluster, spec = self._scaled.cluster, workload.spec
        self._sampler = TelemetrySampler(spec.id, cluster, workload.device, seed, 0, _STEP_S)
        self._limits = {"kind": "hpa", "workload": spec.id, "min": spec.min_replicas, "max": spec.max_replicas}

    def advance(self, until_s: float) -> None:
        """Live on to that second of the fleet's life."""
        while self._fed_s < until_s:
            end_s = min(self._fed_s + _STEP_S, until_s)
            self._scaled.feed(self._source.between(self._fed_s, end_s))
            self._scaled.advance(end_s)
            self._fed_s = end_s

    def records(self) -> list[dict[str, Any]]:
        """Telemetry of this instant, as our own publisher would write it, and the limits of the HPA."""
        self._sampler.sample()
        sample = self._sampler.take(self._scaled.cluster.num_current)
        return [*(orjson.loads(value) for value in (*sample.requests, *sample.gpu)), self._limits]


class Exporters:
    """The whole fleet; its clock begins when it is made."""

    def __init__(self, workloads: Sequence[SimulatedWorkload], seed: int = 0) -> None:
        self._workloads = [ExportedWorkload(w, seed + n) for n, w in enumerate(workloads)]
        for workload in self._workloads:
            workload.advance(PAST_S)
            workload.records()  # what came and went in the past is told here, and nobody listens
        self._began_s, self._lock = monotonic(), Lock()

    def page(self) -> str:
        """What a scrape gets."""
        with self._lock:
            for workload in self._workloads:
                workload.advance(PAST_S + monotonic() - self._began_s)
            return exposition(record for workload in self._workloads for record in workload.records())


def exposition(records: Iterable[dict[str, Any]]) -> str:
    """Records of kind requests, gpu and fleet as the exporters' own text, a family's series together."""
    families: dict[str, list[str]] = {}
    for record in records:
        if record["kind"] in _OF_KIND:
            for family, line in _OF_KIND[record["kind"]](record):
                families.setdefault(family, []).append(line)
    counters = {family for family in families if family.endswith("_total")}
    kinds = {family: "counter" if family in counters else "gauge" for family in families}
    kinds |= dict.fromkeys(_VLLM_HISTOGRAMS.values(), "histogram")
    return "".join(f"# TYPE {family} {kinds[family]}\n" + "".join(lines) for family, lines in families.items())


def pod_of(workload: str, source: str) -> dict[str, str]:
    """Labels of the pod that an engine runs in, named as a Deployment names its pods."""
    namespace, _, name = workload.partition("/")
    number = int(source.partition("/")[0].rpartition("-")[2])
    suffix = "".join(_SUFFIX[(number // len(_SUFFIX) ** place) % len(_SUFFIX)] for place in range(5))
    return {"namespace": namespace, "pod": f"{name}-6d4f9c8b7-{suffix}"}


def _engines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for n, source in enumerate(record["source"]):
        labels = pod_of(record["workload"], source) | {"model_name": record["workload"], "engine": "0"}
        for ours, family in _VLLM.items():
            yield family, _line(family, labels, record["values"][ours][n])
        for ours, family in _VLLM_HISTOGRAMS.items():
            histogram = record["hist"][ours][n]
            for bound, count in zip(
                [*histogram["le"], "+Inf"], [*histogram["cumulative"], histogram["count"]], strict=True
            ):
                yield family, _line(f"{family}_bucket", {**labels, "le": str(bound)}, count)
            yield family, _line(f"{family}_sum", labels, histogram["sum"])
            yield family, _line(f"{family}_count", labels, histogram["count"])


def _devices(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for n, source in enumerate(record["source"]):
        engine, _, index = source.partition("/gpu-")
        labels = pod_of(record["workload"], engine) | {"Hostname": f"node-{engine}", "gpu": index}
        for ours, (family, unit) in _DCGM.items():
            yield family, _line(family, labels, record["values"][ours][n] / unit)


def _deployment(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    namespace, _, name = record["workload"].partition("/")
    labels, values = {"namespace": namespace, "deployment": name}, record["values"]
    for ours, family in _KUBE.items():
        yield family, _line(family, labels, values[ours])
    existing = values["replicas_ready"] + values["replicas_pending"] + values["replicas_draining"]
    yield (family := "kube_deployment_status_replicas"), _line(family, labels, existing)


def _autoscaler(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    namespace, _, name = record["workload"].partition("/")
    labels = {"namespace": namespace, "horizontalpodautoscaler": name}
    target = {"scaletargetref_api_version": "apps/v1", "scaletargetref_kind": "Deployment"}
    prefix = "kube_horizontalpodautoscaler"
    yield (family := f"{prefix}_info"), _line(family, {**labels, **target, "scaletargetref_name": name}, 1)
    for bound in ("min", "max"):
        yield (family := f"{prefix}_spec_{bound}_replicas"), _line(family, labels, record[bound])


_OF_KIND = {"requests": _engines, "gpu": _devices, "fleet": _deployment, "hpa": _autoscaler}


def _line(name: str, labels: dict[str, str], value: float) -> str:
    labels_text = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{labels_text}}} {value}\n"


def server_of(exporters: Exporters, port: int) -> ThreadingHTTPServer:
    """Their page on this machine; 0 = any free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_metrics = self.path.partition("?")[0] == "/metrics"
            body = exporters.page().encode() if is_metrics else b"/metrics\n"
            self.send_response(200 if is_metrics else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.demo.exporters", description="A simulated fleet's exporters."
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="on 127.0.0.1; 0 = any free one")
    parser.add_argument("--seed", type=int, default=0, help="of the load")
    args = parser.parse_args()
    with server_of(Exporters(demo_workloads(args.seed), args.seed), args.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(0) from None
    except OSError as error:
        raise SystemExit(f"harmony: the exporters cannot be served: {error}. Choose another --port.") from None
