"""Inputs as public reports of this field show them: each is read as it is meant, or refused with the reason.

Every kind has several members: labels that not all series carry, arrivals beside gauges, copies, parts of one request,
pods of exporters, owners by name, marks of "no value", times, names, and forms of files.
"""

from __future__ import annotations

import codecs
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from infra.collect.files import read_file
from infra.console.errors import HarmonyError
from tests.infra.collect.samples import TS_MS, packed, reader

GIB = 1 << 30
POD = 'namespace="prod",pod="chat-5d9c7b6f4-x2k8p"'
DAY_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
Readings = dict[tuple[str, str], dict[str, float]]


class Case(NamedTuple):
    """A file, and what it says.

    Attributes:
        expected: fields by workload and source, as last read; None = the field is absent. A text: part of the refusal.
        ts_ms: of all readings; None = not held to any.
    """

    kind: str
    name: str
    content: str | bytes
    expected: dict[tuple[str, str], dict[str, float | None]] | str
    profiles: tuple[str, ...] = ()
    ts_ms: int | None = None


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


def pages(*of: str) -> str:
    """Pages of one exporter five seconds apart, with the time in each line."""
    return "".join(f"{row} {TS_MS + 5_000 * n}\n" for n, page in enumerate(of) for row in page.splitlines())


def vllm(first_tokens: int, waiting: int, running: int, done: int, labels: str = POD) -> str:
    own = f'engine="0",model_name="chat",{labels}'
    return lines(
        f"vllm:time_to_first_token_seconds_count{{{own}}} {first_tokens}",
        f"vllm:num_requests_waiting{{{own}}} {waiting}",
        f"vllm:num_requests_running{{{own}}} {running}",
        f'vllm:request_success_total{{finished_reason="stop",{own}}} {done}',
    )


def otlp(name: str, kind: str, points: list[dict[str, object]], **resource: str) -> str:
    attributes = [{"key": k, "value": {"stringValue": v}} for k, v in resource.items()]
    metric = {"name": name, kind: {"dataPoints": points} | ({} if kind == "gauge" else {"aggregationTemporality": 2})}
    scope = {"scopeMetrics": [{"metrics": [metric]}], "resource": {"attributes": attributes}}
    return json.dumps({"resourceMetrics": [scope]})


def otlp_point(value: float, **more: object) -> dict[str, object]:
    return {"timeUnixNano": str(TS_MS * 1_000_000), "asDouble": value, **more}


OTEL_POD = {"k8s.namespace.name": "prod", "k8s.pod.name": "chat-5d9c7b6f4-x2k8p"}
CHAT = ("prod/chat", "chat-5d9c7b6f4-x2k8p")
STARTED, RUNNING, WAITING = "requests_started_total", "num_requests_running", "num_requests_waiting"
POWER, BUSY = "power_w", "sm_active_ratio"
DP = 'model_name="chat",dp_rank="0",tp_rank="0",' + POD


def dcgm(metric: str, value: float, labels: str) -> str:
    return f'{metric}{{Hostname="n1",{labels}}} {value}'


def owned(what: str, name: str, kind: str, owner: str) -> str:
    """A line of kube-state-metrics."""
    return (
        f'kube_{what}_owner{{namespace="prod",{what}="{name}",owner_kind="{kind}",owner_name="{owner}",'
        'owner_is_controller="true"} 1'
    )


def smi(time: str) -> str:
    """A log of nvidia-smi with one row, and its time."""
    return lines("timestamp, index, utilization.gpu [%], power.draw [W]", f"{time}, 0, 50 %, 300.0 W")


CASES = [
    # A source is the process, whichever of its series carry which labels.
    Case(
        "labels", "data-parallel engines of vLLM and a counter of the process",
        lines(
            *(f'vllm:num_requests_running{{engine="{n}",model_name="chat",{POD}}} {4 + n}' for n in range(3)),
            *(f'vllm:kv_cache_usage_perc{{engine="{n}",model_name="chat",{POD}}} {0.2 * n}' for n in range(3)),
            f"vllm:num_preemptions_total{{{POD}}} 6",
        ),
        {CHAT: {RUNNING: 15.0, "kv_cache_usage_ratio": 0.2, "preemptions_total": 6.0}},
    ),
    Case(
        "labels", "gauges of SGLang per tensor-parallel rank and per scheduler process",
        lines(
            *(f'sglang:num_running_reqs{{model_name="chat",tp_rank="{n}",pid="{70 + n}",{POD}}} 12' for n in range(2)),
            f'sglang:num_queue_reqs{{model_name="chat",tp_rank="0",pid="70",{POD}}} 3',
            f'sglang:num_requests_total{{model_name="chat",{POD}}} 40',
            f'sglang:time_to_first_token_seconds_count{{model_name="chat",{POD}}} 52',
        ),
        {CHAT: {RUNNING: 12.0, WAITING: 3.0, STARTED: 55.0, "requests_finished_total": 40.0}},
    ),
    Case(
        "labels", "SGLang's counters by priority",
        lines(
            *(f'sglang:num_queue_reqs{{priority="{p}",{DP}}} {n}' for p, n in (("", 5),)),
            f"sglang:time_to_first_token_seconds_count{{{DP}}} 10",
            f'sglang:time_to_first_token_seconds_count{{priority="1",{DP}}} 7',
        ),
        {CHAT: {WAITING: 5.0, STARTED: 22.0}},
    ),
    Case(
        "labels", "two models in one frontend of Dynamo are two workloads",
        lines(
            *(f'dynamo_frontend_requests_total{{model="{m}",{POD}}} {n}' for m, n in (("a", 9), ("b", 1))),
            *(f'dynamo_frontend_inflight_requests{{model="{m}",{POD}}} {n}' for m, n in (("a", 2), ("b", 3))),
        ),
        {
            ("prod/a", CHAT[1]): {STARTED: 11.0, RUNNING: 2.0},
            ("prod/b", CHAT[1]): {STARTED: 4.0, RUNNING: 3.0},
        },
    ),
    Case(
        "labels", "trtllm-serve with an engine label on one metric only",
        lines(
            f'trtllm_num_requests_running{{model_name="chat",engine_type="pytorch",engine="0",{POD}}} 5',
            f'trtllm_num_requests_waiting{{model_name="chat",engine_type="pytorch",{POD}}} 2',
            f'trtllm_time_to_first_token_seconds_count{{model_name="chat",{POD}}} 30',
        ),
        {CHAT: {RUNNING: 5.0, WAITING: 2.0, STARTED: 32.0}},
    ),
    # Arrivals: what leaves a gauge uncounted does not stay in the count.
    Case(
        "arrivals", "five clients give up in the queue, then two requests come",
        pages(vllm(100, 5, 4, 96), vllm(100, 0, 4, 96), vllm(102, 0, 6, 96)),
        {CHAT: {STARTED: 107.0}},
    ),
    Case(
        "arrivals", "a restart of the engine is a counter that falls",
        pages(vllm(100, 5, 4, 96), vllm(3, 1, 3, 0)),
        {CHAT: {STARTED: 4.0}},
    ),
    Case(
        "arrivals", "requests from the queue into the batch are no new ones",
        pages(vllm(100, 5, 4, 96), vllm(103, 2, 7, 96), vllm(105, 0, 8, 97)),
        {CHAT: {STARTED: 105.0}},
    ),
    Case(
        "arrivals", "Triton: cancelled while pending is counted as a failure",
        pages(
            lines(
                f'nv_inference_request_success{{model="m",version="1",{POD}}} 50',
                f'nv_inference_request_failure{{model="m",version="1",reason="CANCELED",{POD}}} 0',
                f'nv_inference_pending_request_count{{model="m",version="1",{POD}}} 6',
            ),
            lines(
                f'nv_inference_request_success{{model="m",version="1",{POD}}} 52',
                f'nv_inference_request_failure{{model="m",version="1",reason="CANCELED",{POD}}} 4',
                f'nv_inference_pending_request_count{{model="m",version="1",{POD}}} 0',
            ),
        ),
        {CHAT: {STARTED: 56.0, "requests_finished_total": 56.0}},
    ),
    Case(
        "arrivals", "Dynamo's frontend drains",
        pages(
            lines(
                f'dynamo_frontend_requests_total{{model="m",status="success",{POD}}} 40',
                f'dynamo_frontend_inflight_requests{{model="m",{POD}}} 8',
            ),
            lines(
                f'dynamo_frontend_requests_total{{model="m",status="success",{POD}}} 46',
                f'dynamo_frontend_requests_total{{model="m",status="error",{POD}}} 2',
                f'dynamo_frontend_inflight_requests{{model="m",{POD}}} 0',
            ),
        ),
        {("prod/m", CHAT[1]): {STARTED: 48.0, RUNNING: 0.0}},
    ),
    # Copies count once.
    Case(
        "copies", "two replicas of Prometheus behind Thanos",
        "".join(
            vllm(100 + n, 5, 4, 96, f'{POD},prometheus_replica="prometheus-{n}",cluster="eu"') for n in range(2)
        ),
        {CHAT: {STARTED: 106.0, RUNNING: 4.0}},
    ),
    Case(
        "copies", "a pod monitor and a service monitor scrape one engine",
        "".join(
            vllm(100, 5, 4, 96, f'{POD},job="{job}",endpoint="{port}"')
            for job, port in (("monitoring/chat", "http"), ("chat-service", "8000"))
        ),
        {CHAT: {STARTED: 105.0, WAITING: 5.0}},
    ),
    Case(
        "copies", "federation beside the series of its own, in another region label",
        vllm(100, 5, 4, 96) + vllm(100, 5, 4, 96, f'{POD},region="a",job="federate",exported_job="vllm"'),
        {CHAT: {STARTED: 105.0}},
    ),
    Case(
        "copies", "an HA pair of Prometheus that both scrape the DCGM exporter",
        lines(
            *(
                dcgm("DCGM_FI_DEV_POWER_USAGE", 300, f'gpu="0",UUID="GPU-a",{POD},prometheus="monitoring/k8s-{n}"')
                for n in range(2)
            ),
            *(
                dcgm("DCGM_FI_DEV_GPU_UTIL", 80, f'gpu="0",UUID="GPU-a",{POD},prometheus="monitoring/k8s-{n}"')
                for n in range(2)
            ),
        ),
        {("prod/chat", "n1/0"): {POWER: 300.0, BUSY: 0.8}},
    ),
    Case(
        "copies", "one device that four pods share in time",
        lines(
            *(
                dcgm("DCGM_FI_DEV_POWER_USAGE", 300, f'gpu="0",namespace="prod",pod="chat-5d9c7b6f4-x2k8{s}"')
                for s in "bcdf"
            )
        ),
        {("prod/chat", "n1/0"): {POWER: 300.0}},
    ),
    # Parts of one request or one board.
    Case(
        "parts", "business logic, tokenizer and engine of one model",
        lines(
            *(
                f'nv_inference_request_success{{model="{m}",version="1",{POD}}} {n}'
                for m, n in (("tensorrt_llm_bls", 50), ("preprocessing", 50), ("tensorrt_llm", 49))
            ),
        ),
        {CHAT: {"requests_finished_total": 50.0}},
    ),
    Case(
        "parts", "seven instances of a board",
        lines(
            *(
                dcgm("DCGM_FI_DEV_POWER_USAGE", 400, f'gpu="0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{7 + n}",{POD}')
                for n in range(7)
            ),
            *(
                dcgm("DCGM_FI_DEV_FB_USED", 1024, f'gpu="0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{7 + n}",{POD}')
                for n in range(7)
            ),
        ),
        {("prod/chat", f"n1/0/{7 + n}"): {POWER: None, "memory_used_bytes": float(GIB)} for n in range(7)},
    ),
    Case(
        "parts", "requests of Dynamo by endpoint and status",
        lines(
            *(
                f'dynamo_frontend_requests_total{{endpoint="{e}",model="m",status="{s}",{POD}}} {n}'
                for e, s, n in (("chat", "success", 5), ("completions", "success", 3), ("chat", "error", 1))
            ),
            f'dynamo_frontend_inflight_requests{{model="m",{POD}}} 1',
        ),
        {("prod/m", CHAT[1]): {"requests_finished_total": 9.0, STARTED: 10.0}},
    ),
    # The exporter's own pod is no workload.
    *(
        Case(
            "exporter", f"an idle device of {pod}",
            lines(
                dcgm("DCGM_FI_DEV_GPU_UTIL", 0, f'gpu="1",namespace="{ns}",pod="{pod}",container="{c}"'),
                dcgm("DCGM_FI_DEV_GPU_UTIL", 90, f'gpu="0",namespace="{ns}",pod="{pod}",container="{c}",'
                     'exported_namespace="prod",exported_pod="chat-5d9c7b6f4-x2k8p",exported_container="vllm"'),
            ),
            {("prod/chat", "n1/0"): {BUSY: 0.9}},
        )
        for ns, pod, c in (
            ("gpu-operator", "nvidia-dcgm-exporter-x2k8p", "nvidia-dcgm-exporter"),
            ("kube-system", "gpu-metrics-x2k8p", "metrics"),
        )
    ),
    Case(
        "exporter", "AMD's exporter in a pod of its own, idle device",
        lines('gpu_gfx_activity{gpu_id="0",hostname="m1",namespace="amd",pod="amd-gpu-metrics-exporter-x2k8p"} 1'),
        {},
    ),
    # Owners of pods.
    *(
        Case(
            "owner", f"{pod} by {', '.join(more) or 'its name'}",
            lines(f'vllm:num_requests_running{{model_name="chat",namespace="prod",pod="{pod}"{label}}} 1', *more),
            {(f"prod/{owner}", pod): {RUNNING: 1.0}},
            ("vllm",),
        )
        for pod, label, more, owner in (
            ("ms-chat-llm-d-modelservice-decode-5d9c7b6f4-x2k8p", "", (), "ms-chat-llm-d-modelservice-decode"),
            ("chat-predictor-00012-deployment-5d9c7b6f4-x2k8p", "", (), "chat-predictor"),
            ("chat-2", ',label_leaderworkerset_sigs_k8s_io_name="chat"', (), "chat"),
            (
                "chat-raycluster-x2k8p-worker-gpu-worker-b7c9d", "",
                (owned("pod", "chat-raycluster-x2k8p-worker-gpu-worker-b7c9d", "RayCluster", "chat-raycluster-x2k8p"),),
                "chat-raycluster-x2k8p",
            ),
            (
                "chat-5d9c7b6f4-x2k8p", "",
                (
                    owned("pod", "chat-5d9c7b6f4-x2k8p", "ReplicaSet", "chat-5d9c7b6f4"),
                    owned("replicaset", "chat-5d9c7b6f4", "Rollout", "chat-canary"),
                ),
                "chat-canary",
            ),
        )
    ),
    # Marks of "no value".
    Case(
        "blank", "a gauge with the flag that nothing was recorded, beside one that was",
        otlp("vllm:num_requests_running", "gauge",
             [otlp_point(0.0, flags=1, attributes=[{"key": "engine", "value": {"stringValue": "0"}}]),
              otlp_point(7.0, attributes=[{"key": "engine", "value": {"stringValue": "1"}}])], **OTEL_POD),
        {CHAT: {RUNNING: 7.0}},
    ),
    Case(
        "blank", "a counter whose scrape failed",
        otlp("vllm:prompt_tokens_total", "sum", [otlp_point(0.0, flags=1)], **OTEL_POD), {},
    ),
    Case(
        "blank", "NaN as text in a record of prometheus-kafka-adapter",
        json.dumps({"name": "vllm:num_requests_running", "value": "NaN", "timestamp": "2026-01-31T12:00:00Z",
                    "labels": {"__name__": "vllm:num_requests_running", "namespace": "prod", "pod": "chat-0"}}), {},
    ),
    Case(
        "blank", "a series that ends in an answer of query_range",
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
            {"metric": {"__name__": "vllm:num_requests_running", "namespace": "prod", "pod": "chat-0"},
             "values": [[1769860800, "4"], [1769860815, "NaN"]]}]}}),
        {("prod/chat", "chat-0"): {RUNNING: 4.0}}, ts_ms=DAY_MS,
    ),
    Case(
        "blank", "DCGM's blanks of every width and N/A of nvidia-smi",
        lines(
            dcgm("DCGM_FI_DEV_POWER_USAGE", 9223372036854775792, f'gpu="0",{POD}'),
            dcgm("DCGM_FI_DEV_GPU_TEMP", 2147483632, f'gpu="0",{POD}'),
            dcgm("DCGM_FI_DEV_GPU_UTIL", 40, f'gpu="0",{POD}'),
        ),
        {("prod/chat", "n1/0"): {BUSY: 0.4, POWER: None, "temperature_c": None}},
    ),
    # Times.
    *(
        Case("time", written, smi(written), {("w", "smi/0"): {BUSY: 0.5, POWER: 300.0}}, ("nvidia-smi",), DAY_MS)
        for written in (
            "2026-01-31T12:00:00Z", "2026/01/31 13:00:00.000 +01:00", "2026-01-31 21:00:00 Asia/Tokyo",
            "2026-01-31T04:00:00-08:00[America/Los_Angeles]", "1769860800", "1769860800000", "1769860800000000000",
            "20260131T120000Z", "2026-01-31 12:00:00 UTC", "1.7698608e9",
        )
    ),
    *(
        Case("time", written, smi(written), words, ("nvidia-smi",))
        for written, words in (
            ("01/31/2026 12:00:00", "month"), ("31.01.2026 12:00", "month"), ("46053.5", "spreadsheet"),
            ("2026-10-25 02:30:00 Europe/Berlin", "clock"), ("2026-02-30 12:00:00", "2026-02-30"),
            ("2026-01-31 12:00:00 PM", "time"), ("12:00:00", "time"),
        )
    ),
    # Names of another version or another way.
    Case(
        "names", "a gauge of the cache under its old name, in a share",
        lines(f'vllm:gpu_cache_usage_perc{{model_name="chat",{POD}}} 0.35'),
        {CHAT: {"kv_cache_usage_ratio": 0.35}},
    ),
    Case(
        "names", "OpenTelemetry's counters without the suffix",
        otlp("vllm:generation_tokens", "sum", [otlp_point(9000.0)], **OTEL_POD),
        {CHAT: {"generation_tokens_total": 9000.0}},
    ),
    Case(
        "names", "quoted names of Prometheus 3",
        lines(f'{{"vllm:num_requests_running",model_name="chat",{POD}}} 3'), {CHAT: {RUNNING: 3.0}},
    ),
    Case(
        "names", "a gauge of Dynamo under its old name",
        lines(f'dynamo_frontend_inflight_requests_total{{model="m",{POD}}} 4',
              f'dynamo_frontend_requests_total{{model="m",status="success",{POD}}} 6'),
        {("prod/m", CHAT[1]): {RUNNING: 4.0, STARTED: 10.0}},
    ),
    Case(
        "names", "DCGM's throttling under its old name",
        lines(dcgm("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x48, f'gpu="0",{POD}')),
        {("prod/chat", "n1/0"): {"throttled_ratio": 1.0}},
    ),
    Case(
        "names", "Ray's names, two replicas on one node",
        lines(
            *(
                f'ray_vllm_num_requests_running{{model_name="chat",ReplicaId="{r}",WorkerId="w{r}",NodeAddress="10.0.0.1",'
                f'SessionName="s",namespace="prod"}} {n}'
                for r, n in (("a", 2), ("b", 3))
            )
        ),
        {("prod/chat", "a"): {RUNNING: 2.0}, ("prod/chat", "b"): {RUNNING: 3.0}},
    ),
    Case(
        "names", "a share above one is no share",
        lines(f'vllm:kv_cache_usage_perc{{model_name="chat",{POD}}} 35', f"vllm:num_requests_running{{{POD}}} 1"),
        {CHAT: {"kv_cache_usage_ratio": None, RUNNING: 1.0}},
    ),
    # Forms of files.
    Case(
        "form", "PowerShell's redirection", codecs.BOM_UTF16_LE + smi("2026-01-31T12:00:00Z").encode("utf-16-le"),
        "UTF-8", ("nvidia-smi",),
    ),
    Case(
        "form", "a byte-order mark and line ends of Windows",
        codecs.BOM_UTF8 + smi("2026-01-31T12:00:00Z").replace("\n", "\r\n").encode(),
        {("w", "smi/0"): {POWER: 300.0}}, ("nvidia-smi",), DAY_MS,
    ),
    Case(
        "form", "gzip without the suffix, of JSON over several lines",
        gzip.compress(json.dumps(json.loads(otlp("vllm:num_requests_running", "gauge", [otlp_point(2.0)], **OTEL_POD)),
                                 indent=2).encode()),
        {CHAT: {RUNNING: 2.0}}, ts_ms=TS_MS,
    ),
    Case(
        "form", "Telegraf in batches with times in nanoseconds",
        json.dumps({"metrics": [{"name": "prometheus", "timestamp": TS_MS * 1_000_000, "tags": {
            "namespace": "prod", "pod": "chat-5d9c7b6f4-x2k8p", "model_name": "chat"},
            "fields": {"vllm:num_requests_running": 6}}]}),
        {CHAT: {RUNNING: 6.0}}, ts_ms=TS_MS,
    ),
    Case(
        "form", "OpenMetrics with times in seconds, exemplars and its end",
        lines(
            "# TYPE vllm:generation_tokens counter",
            f'vllm:generation_tokens_total{{{POD}}} 17.0 1763636415.000 # {{trace_id="a"}} 1.0 1763636414.5',
            "# EOF",
        ),
        {CHAT: {"generation_tokens_total": 17.0}}, ts_ms=TS_MS,
    ),
    Case(
        "form", "devices named by a bus with a domain of eight digits",
        lines("timestamp, pci.bus_id, utilization.gpu [%]", "2026-01-31T12:00:00Z, 00000000:17:00.0, 10 %",
              "2026-01-31T12:00:00Z, 00000000:65:00.0, 30 %"),
        {("w", "smi/00000000:17:00.0"): {BUSY: 0.1}, ("w", "smi/00000000:65:00.0"): {BUSY: 0.3}},
        ("nvidia-smi",), DAY_MS,
    ),
    Case(
        # A comma may divide thousands: such a cell is missing, and said.
        "form", "a dump of nvidia-smi by UUID, semicolons and decimal commas",
        lines("timestamp;uuid;utilization.gpu [%];power.draw [W]", "2026-01-31T12:00:00Z;GPU-a;50 %;300,5 W",
              "2026-01-31T12:00:00Z;GPU-b;10 %;80.25 W"),
        {("w", "smi/GPU-a"): {BUSY: 0.5, POWER: None}, ("w", "smi/GPU-b"): {POWER: 80.25}}, ("nvidia-smi",), DAY_MS,
    ),
    Case(
        "form", "rows of two devices that nothing tells apart",
        lines("timestamp, power.draw [W]", "2026-01-31T12:00:00Z, 300 W", "2026-01-31T12:00:00Z, 310 W"),
        "apart", ("nvidia-smi",),
    ),
    Case(
        "form", "power in kilowatts", lines("timestamp, index, power.draw [kW]", "2026-01-31T12:00:00Z, 0, 0.3 kW"),
        "kW", ("nvidia-smi",),
    ),
    Case(
        "form", "Vector's gauge with a time in nanoseconds",
        json.dumps({"name": "vllm:num_requests_running", "kind": "absolute", "gauge": {"value": 5.0},
                    "timestamp": "2026-01-31T12:00:00.000000000Z",
                    "tags": {"namespace": "prod", "pod": "chat-5d9c7b6f4-x2k8p"}}),
        {CHAT: {RUNNING: 5.0}}, ts_ms=DAY_MS,
    ),
    Case(
        "form", "a record that is cut off",
        otlp("vllm:num_requests_running", "gauge", [otlp_point(1.0)], **OTEL_POD)[:-9],
        "JSON",
    ),
    Case(
        "form", "the table that nvidia-smi prints for people",
        lines("+---------------------------------------+", "| NVIDIA-SMI 550.54   Driver: 550.54   |"),
        "--format=csv",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c.kind}: {c.name[:60]}" for c in CASES])
def test_a_report_is_read_as_it_is_meant(tmp_path: Path, case: Case) -> None:
    path = tmp_path / "smi.txt"
    path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    by = reader(*case.profiles, workload="w" if case.profiles == ("nvidia-smi",) else None)
    if isinstance(case.expected, str):
        with pytest.raises(HarmonyError, match=case.expected):
            list(read_file(path, "auto", {}, by, Counter()))
        return
    readings = [reading for points in read_file(path, "auto", {}, by, Counter()) for reading in by.read(points)]
    packed(readings)
    read = {(r.workload, r.source): r.values for r in readings}
    assert read.keys() == case.expected.keys()
    for who, fields in case.expected.items():
        assert {name: read[who].get(name) for name in fields} == pytest.approx(fields), who
    if case.ts_ms is not None:
        assert {reading.ts_ms for reading in readings} <= {case.ts_ms}


def test_a_decimal_comma_is_said_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "smi.csv"
    path.write_text(smi("2026-01-31T12:00:00Z").replace(",", ";").replace("300.0", "300,5"))
    by = reader("nvidia-smi", workload="w")
    assert [list(points) for points in read_file(path, "auto", {}, by, Counter())]
    assert "'300,5 W'; write decimals with a point." in capsys.readouterr().err
