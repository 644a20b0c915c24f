"""Small samples of what exporters serve, written by hand after their formats."""

from __future__ import annotations

from collections.abc import Sequence

from infra.collect.formats.exposition import read_exposition
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader, SourceReading
from infra.collect.mapping.workloads import Identities
from infra.collect.publisher import pack
from streams.log import OutRecord
from streams.records.decode import decode
from streams.records.schema import FleetRecord, SampleRecord
from streams.topics import Topics

TS_MS = 1_763_636_415_000
TOPICS = Topics()

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="acme/chat-7b"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="acme/chat-7b"} 3.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="acme/chat-7b"} 0.41
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="acme/chat-7b"} 52000.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="acme/chat-7b"} 17000.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="acme/chat-7b"} 90.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="acme/chat-7b"} 6.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="acme/chat-7b"} 0.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="acme/chat-7b"} 80.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="acme/chat-7b"} 95.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="acme/chat-7b"} 100.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="acme/chat-7b"} 100.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="acme/chat-7b"} 41.5
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="acme/chat-7b"} 900.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="acme/chat-7b"} 950.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="acme/chat-7b"} 950.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="acme/chat-7b"} 30.25
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 16.2
"""

DCGM = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 97
DCGM_FI_DEV_GPU_UTIL{gpu="1",Hostname="node3",namespace="",pod=""} 0
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 0.83
# TYPE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE gauge
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 0.31
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 70000
DCGM_FI_DEV_FB_FREE{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 11000
DCGM_FI_DEV_FB_RESERVED{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 559
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 612.5
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="node3",namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"} 64
"""

KUBE = """\
kube_deployment_spec_replicas{namespace="prod",deployment="chat-7b"} 7
kube_deployment_status_replicas{namespace="prod",deployment="chat-7b"} 7
kube_deployment_status_replicas_ready{namespace="prod",deployment="chat-7b"} 6
"""

SGLANG = """\
sglang:num_running_reqs{model_name="qwen",tp_rank="0",dp_rank="0"} 12
sglang:num_running_reqs{model_name="qwen",tp_rank="1",dp_rank="0"} 12
sglang:num_queue_reqs{model_name="qwen",tp_rank="0",dp_rank="0"} 2
sglang:token_usage{model_name="qwen",tp_rank="0",dp_rank="0"} 0.28
sglang:prompt_tokens_total{model_name="qwen",dp_rank="0"} 8128902
sglang:generation_tokens_total{model_name="qwen",dp_rank="0"} 7557572
sglang:num_requests_total{model_name="qwen",dp_rank="0"} 41
sglang:time_to_first_token_seconds_bucket{model_name="qwen",dp_rank="0",le="0.1"} 30
sglang:time_to_first_token_seconds_bucket{model_name="qwen",dp_rank="0",le="+Inf"} 44
sglang:time_to_first_token_seconds_count{model_name="qwen",dp_rank="0"} 44
sglang:time_to_first_token_seconds_sum{model_name="qwen",dp_rank="0"} 11.0
"""

TRTLLM = """\
trtllm_request_success_total{model_name="llama",engine_type="pytorch",finished_reason="stop"} 77
trtllm_num_requests_running{model_name="llama",engine_type="pytorch"} 5
trtllm_num_requests_waiting{model_name="llama",engine_type="pytorch"} 1
trtllm_kv_cache_utilization{model_name="llama",engine_type="pytorch"} 0.62
trtllm_time_to_first_token_seconds_bucket{model_name="llama",engine_type="pytorch",le="1.0"} 80
trtllm_time_to_first_token_seconds_bucket{model_name="llama",engine_type="pytorch",le="+Inf"} 81
trtllm_time_to_first_token_seconds_count{model_name="llama",engine_type="pytorch"} 81
trtllm_time_to_first_token_seconds_sum{model_name="llama",engine_type="pytorch"} 20
"""

TRITON = """\
nv_inference_request_success{model="tensorrt_llm",version="1"} 500
nv_inference_request_failure{model="tensorrt_llm",reason="OTHER",version="1"} 2
nv_inference_request_failure{model="tensorrt_llm",reason="CANCELED",version="1"} 3
nv_inference_pending_request_count{model="tensorrt_llm",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 9
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1560
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6240
nv_inference_first_response_histogram_ms_bucket{model="tensorrt_llm",version="1",le="100"} 300
nv_inference_first_response_histogram_ms_bucket{model="tensorrt_llm",version="1",le="+Inf"} 505
nv_inference_first_response_histogram_ms_count{model="tensorrt_llm",version="1"} 505
nv_inference_first_response_histogram_ms_sum{model="tensorrt_llm",version="1"} 60600
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 4000
nv_gpu_power_usage{gpu_uuid="GPU-a"} 200.5
"""

TGI = """\
tgi_request_count 150
tgi_request_success{method="generate"} 140
tgi_queue_size 3
tgi_batch_current_size 5
tgi_request_input_length_sum 12000
tgi_request_generated_tokens_sum 9000
tgi_request_mean_time_per_token_duration_bucket{le="0.01"} 100
tgi_request_mean_time_per_token_duration_bucket{le="+Inf"} 140
tgi_request_mean_time_per_token_duration_count 140
tgi_request_mean_time_per_token_duration_sum 2.5
"""

DYNAMO = """\
dynamo_frontend_requests_total{endpoint="chat_completions",model="llama",request_type="stream",status="success"} 40
dynamo_frontend_requests_total{endpoint="chat_completions",model="llama",request_type="stream",status="error"} 2
dynamo_frontend_inflight_requests{model="llama"} 8
dynamo_frontend_queued_requests{model="llama"} 3
dynamo_frontend_input_sequence_tokens_sum{model="llama"} 9000
dynamo_frontend_output_sequence_tokens_sum{model="llama"} 4000
"""


def reader(*profiles: str, workload: str | None = None, declared: dict[str, dict[str, str]] | None = None) -> Reader:
    """A reader by shipped profiles."""
    mapping = choose(profiles)
    return Reader(mapping.profiles, Identities(declared, mapping.rules, workload))


def readings_of(text: str, by: Reader, ts_ms: int = TS_MS, **labels: str) -> list[SourceReading]:
    """What a scrape of this text at this time comes to."""
    return by.read(read_exposition(text, by.reads, ts_ms, {"instance": "h:8000", **labels}))


def accepted(records: Sequence[OutRecord]) -> list[SampleRecord | FleetRecord]:
    """The records as stage 1 decodes them; fails when it refuses one."""
    found = []
    for record in records:
        source = "gpu" if record.topic == TOPICS.telemetry_gpu else "requests"
        decoded = decode(record.value, record.key, source)
        assert isinstance(decoded, SampleRecord | FleetRecord), (decoded, record.value)
        assert decoded.unknown_names == 0
        found.append(decoded)
    return found


def packed(readings: Sequence[SourceReading]) -> list[SampleRecord | FleetRecord]:
    """Readings packed and decoded again."""
    return accepted(pack(readings, TOPICS))
