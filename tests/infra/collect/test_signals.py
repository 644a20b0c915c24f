"""What a prefill computes, what preempts requests, and clocks, energy and faults of devices, by exporter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Reader
from infra.collect.sources.nvml import SLOWDOWN_BITS
from tests.infra.collect.samples import DCGM, DYNAMO, SGLANG, TRTLLM, TS_MS, VLLM, reader, readings_of

POD = 'namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"'
UNCACHED = "uncached_prompt_tokens_total"
LABELS = 'engine="0",model_name="acme/chat-7b"'
QUERIES = f"vllm:prefix_cache_queries_total{{{LABELS}}} 50000\nvllm:prefix_cache_hits_total{{{LABELS}}} 30000\n"
EXTERNAL = f"vllm:external_prefix_cache_hits_total{{{LABELS}}} 5000\n"
BY_SOURCE = "".join(
    f'vllm:prompt_tokens_by_source_total{{{LABELS},source="{source}"}} {tokens}\n'
    for source, tokens in (("local_compute", 12_000), ("local_cache_hit", 39_000), ("external_kv_transfer", 1_000))
)
LMCACHE = "".join(
    f'lmcache:num_hit_tokens_total{{model_name="acme/chat-7b",role="worker",worker_id="{n}"}} 4000\n' for n in range(2)
)
SWITCHED_OFF = QUERIES.replace("50000", "0").replace("30000", "0")
# vLLM says 52,000 prompt tokens, SGLang 8,128,902, Dynamo 9,000.
COMPUTED: list[tuple[str, str, float]] = [
    ("vllm by source", VLLM + QUERIES + EXTERNAL + BY_SOURCE, 12_000.0),
    ("vllm with a connector", VLLM + QUERIES + EXTERNAL + LMCACHE, 15_000.0),
    ("vllm with LMCache, two workers", VLLM + QUERIES + LMCACHE, 16_000.0),
    ("vllm", VLLM + QUERIES, 20_000.0),
    ("vllm without prefix caching", VLLM + SWITCHED_OFF + EXTERNAL.replace("5000", "0"), 52_000.0),
    ("vllm that does not tell", VLLM, 52_000.0),
    ("sglang before the first hit", SGLANG, 8_128_902.0),
    (
        "sglang",
        SGLANG
        + 'sglang:cached_tokens_total{model_name="qwen",dp_rank="0",cache_source="device"} 8000000\n'
        + 'sglang:cached_tokens_total{model_name="qwen",dp_rank="0",cache_source="host"} 100000\n',
        28_902.0,
    ),
    ("sglang, older", SGLANG + 'sglang:cached_tokens_total{model_name="qwen",dp_rank="0"} 8128000\n', 902.0),
    (
        "sglang with histograms",
        SGLANG + 'sglang:uncached_prompt_tokens_histogram_sum{model_name="qwen",dp_rank="0"} 500\n',
        500.0,
    ),
    ("dynamo", DYNAMO + 'dynamo_frontend_cached_tokens_sum{model="llama"} 6000\n', 3_000.0),
    (
        "trtllm",
        TRTLLM
        + 'trtllm_prompt_tokens_total{model_name="llama",engine_type="pytorch"} 1800\n'
        + 'trtllm_prompt_cached_tokens_total{model_name="llama",engine_type="pytorch"} 450\n',
        1_350.0,
    ),
]


@pytest.mark.parametrize(("text", "computed"), [case[1:] for case in COMPUTED], ids=[case[0] for case in COMPUTED])
def test_prompt_tokens_that_a_prefill_computes(text: str, computed: float) -> None:
    (reading,) = readings_of(text, reader(), namespace="prod")
    assert reading.values[UNCACHED] == computed
    assert reading.values[UNCACHED] <= reading.values["prompt_tokens_total"]


@given(steps=st.lists(st.tuples(st.integers(1, 999), st.floats(0, 1), st.booleans()), min_size=1, max_size=20))
def test_counters_read_at_different_moments_never_fall_and_lose_nothing(steps: list[tuple[int, float, bool]]) -> None:
    """A scrape may see the hits of a request whose queries it does not see yet."""
    by, queries, hits, last = Reader(choose(("vllm",)).profiles, _identities()), 0, 0, 0.0
    for k, (tokens, hit_rate, torn) in enumerate(steps):
        seen = queries if torn and k % 2 else queries + tokens
        queries, hits = queries + tokens, hits + int(tokens * hit_rate)
        text = VLLM + QUERIES.replace("50000", str(10_000 + seen)).replace("30000", str(hits))
        (reading,) = readings_of(text, by, TS_MS + 5_000 * k, namespace="prod")
        assert reading.values[UNCACHED] >= last
        last = reading.values[UNCACHED]
    (reading,) = readings_of(
        VLLM + QUERIES.replace("50000", str(20_000 + queries)).replace("30000", str(hits)),
        by, TS_MS + 5_000 * len(steps), namespace="prod",
    )  # fmt: skip
    assert reading.values[UNCACHED] == 20_000 + queries - hits


def _identities() -> Any:
    from infra.collect.mapping.workloads import Identities

    return Identities()


def test_the_first_hit_of_sglang_is_no_restart() -> None:
    by = reader()
    texts = [
        SGLANG,
        SGLANG.replace("8128902", "8129902"),
        SGLANG.replace("8128902", "8130902")
        + 'sglang:cached_tokens_total{model_name="qwen",dp_rank="0",cache_source="device"} 1500\n',
        SGLANG.replace("8128902", "8131902")
        + 'sglang:cached_tokens_total{model_name="qwen",dp_rank="0",cache_source="device"} 2100\n',
    ]
    told = [
        readings_of(text, by, TS_MS + 5_000 * k, namespace="prod")[0].values[UNCACHED] for k, text in enumerate(texts)
    ]
    assert told == sorted(told)
    assert told[3] - told[2] == 400.0


def test_time_between_tokens_and_preemptions() -> None:
    by = reader()
    first = VLLM + f"vllm:num_preemptions_total{{{LABELS}}} 7\n"
    second = first.replace("} 950.0", "} 1350.0").replace("} 30.25", "} 46.25").replace("} 7\n", "} 9\n")
    (before,), (after,) = (
        readings_of(text, by, TS_MS + 5_000 * k, namespace="prod") for k, text in enumerate((first, second))
    )
    assert "inter_token_s" not in before.values
    assert after.values["inter_token_s"] == pytest.approx(16.0 / 400)
    assert (before.values["preemptions_total"], after.values["preemptions_total"]) == (7.0, 9.0)
    (idle,) = readings_of(second, by, TS_MS + 10_000, namespace="prod")
    assert "inter_token_s" not in idle.values, "no token, no time between tokens"
    (retracted,) = readings_of(SGLANG + 'sglang:num_retracted_requests_total{model_name="qwen"} 3\n', reader())
    assert retracted.values["preemptions_total"] == 3.0


def dcgm(field: str, value: object, more: str = "") -> str:
    return f'{field}{{gpu="0",Hostname="node3",{POD}{more}}} {value}\n'


BITS = [
    (0x0, 0),
    (0x1, 0),
    (0x2, 0),
    (0x4, 0),
    (0x8, 1),
    (0x10, 0),
    (0x20, 1),
    (0x40, 1),
    (0x80, 1),
    (0x100, 0),
    (0x24, 1),
]


@pytest.mark.parametrize(("mask", "throttled"), BITS)
@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{gpu="0",Hostname="node3",{pod}}} {mask}\n',
        'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu="0",Hostname="node3",{pod}}} {mask}\n',
        'nvidia_smi_clocks_event_reasons_active{{uuid="GPU-1",{pod}}} {mask}\n',
        'nvidia_smi_clocks_throttle_reasons_active{{uuid="GPU-1",{pod}}} {mask}\n',
    ],
)
def test_bits_that_mean_a_slowdown(line: str, mask: int, throttled: int) -> None:
    """An idle device, a setting and a power cap lower the clock, too, and are no fault."""
    (reading,) = readings_of(line.format(pod=POD, mask=float(mask)), reader())
    assert reading.values == {"throttled_ratio": float(throttled)}


@given(mask=st.integers(0, 2**31 - 1))
def test_any_bit_of_a_mask_makes_it_one(mask: int) -> None:
    by = Reader(choose(("nvidia-smi",)).profiles, _identities())
    (reading,) = readings_of(f'nvidia_smi_clocks_event_reasons_active{{uuid="GPU-1",{POD}}} {mask}\n', by)
    assert reading.values["throttled_ratio"] == float(mask & SLOWDOWN_BITS != 0)


def test_dcgm_tells_clock_energy_and_faults() -> None:
    text = (
        DCGM
        + dcgm("DCGM_FI_DEV_SM_CLOCK", 1_980)
        + dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 7_000_500)
        + dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2)
        + dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 40)
        + dcgm("DCGM_FI_DEV_XID_ERRORS", 79, ',err_code="79",err_msg="GPU has fallen off the bus"')
    )
    (reading,) = readings_of(text, reader())
    told = {name: reading.values[name] for name in ("sm_clock_mhz", "energy_total_j", "ecc_errors_total", "xid_code")}
    assert told == {"sm_clock_mhz": 1_980.0, "energy_total_j": 7_000.5, "ecc_errors_total": 2.0, "xid_code": 79.0}
    lifetime = readings_of(dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 40), reader())[0].values
    assert lifetime == {"ecc_errors_total": 40.0}
    (blank,) = readings_of(DCGM + dcgm("DCGM_FI_DEV_XID_ERRORS", 2_147_483_632), reader())
    assert "xid_code" not in blank.values


def test_a_part_of_a_board_has_no_energy_and_no_memory_errors_of_its_own() -> None:
    part = ',GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"'
    of_board = {
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 7_000_500,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2,
        "DCGM_FI_DEV_POWER_USAGE": 612,
    }
    text = "".join(dcgm(field, value, part) for field, value in {"DCGM_FI_DEV_SM_CLOCK": 1_980, **of_board}.items())
    (reading,) = readings_of(text, reader())
    assert (reading.source, reading.values) == ("node3/0/7", {"sm_clock_mhz": 1_980.0})


def series(name: str, value: float, **labels: str) -> str:
    told = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{told},{POD}}} {value}\n"


def amd(prefix: str) -> str:
    clocks = (("SYSTEM", "0", 1500), ("SYSTEM", "1", 1700), ("MEMORY", "8", 1300))
    device = {"gpu_id": "3", "hostname": "n"}
    return "".join(
        [
            *(
                series(f"{prefix}gpu_clock", value, clock_type=f"GPU_CLOCK_TYPE_{kind}", clock_index=index, **device)
                for kind, index, value in clocks
            ),
            series(f"{prefix}gpu_energy_consumed", 7_000_500_000, **device),
            series(f"{prefix}gpu_ecc_uncorrect_total", 4, **device),
        ]
    )


AMD = {"sm_clock_mhz": 1_600.0, "energy_total_j": 7_000.5, "ecc_errors_total": 4.0}
OTHERS: dict[str, tuple[str, dict[str, float]]] = {
    "nvidia_gpu_exporter": (
        series("nvidia_smi_clocks_current_sm_clock_hz", 1.98e9, uuid="GPU-1")
        + series("nvidia_smi_ecc_errors_uncorrected_volatile_total", 1, uuid="GPU-1"),
        {"sm_clock_mhz": 1_980.0, "ecc_errors_total": 1.0},
    ),
    "Telegraf": (series("nvidia_smi_clocks_current_sm", 1410, uuid="GPU-1"), {"sm_clock_mhz": 1_410.0}),
    "AMD": (amd(""), AMD),
    "AMD with a prefix": (amd("amd_"), AMD),
    "Triton": (series("nv_energy_consumption", 512.5, gpu_uuid="GPU-a"), {"energy_total_j": 512.5}),
    "OpenTelemetry": (series("hw_energy_joules_total", 512.5, hw_id="0", hw_type="gpu"), {"energy_total_j": 512.5}),
}


@pytest.mark.parametrize(("text", "values"), OTHERS.values(), ids=OTHERS)
def test_other_exporters_of_devices(text: str, values: dict[str, float]) -> None:
    (reading,) = readings_of(text, reader())
    assert reading.values == pytest.approx(values)


def test_node_exporter() -> None:
    text = """\
node_cpu_scaling_frequency_hertz{cpu="0"} 2.4e9
node_cpu_scaling_frequency_hertz{cpu="1"} 3.0e9
node_rapl_package_joules_total{index="0",path="a"} 100
node_rapl_package_joules_total{index="1",path="b"} 150
node_edac_uncorrectable_errors_total{controller="0"} 2
"""
    (reading,) = readings_of(text, reader("node"), job="cpus")
    assert reading.values == pytest.approx({"sm_clock_mhz": 2_700.0, "energy_total_j": 250.0, "ecc_errors_total": 2.0})


GATEWAYS = """\
inference_objective_request_total{model_name="chat",target_model_name="chat-7b",priority="0"} 120
inference_objective_input_tokens_sum{model_name="chat",target_model_name="chat-7b"} 90000
inference_objective_output_tokens_sum{model_name="chat",target_model_name="chat-7b"} 30000
inference_objective_running_requests{model_name="chat"} 8
inference_pool_average_kv_cache_utilization{name="pool-a"} 0.5
envoy_cluster_upstream_rq_total{envoy_cluster_name="chat"} 121
envoy_cluster_upstream_rq_completed{envoy_cluster_name="chat"} 110
envoy_cluster_upstream_rq_active{envoy_cluster_name="chat"} 9
envoy_cluster_upstream_rq_pending_active{envoy_cluster_name="chat"} 2
"""


def test_gateways_are_read_when_they_are_named() -> None:
    """They count the requests of the engines behind them once more."""
    assert readings_of(GATEWAYS, reader(), namespace="prod") == []
    picked = readings_of(GATEWAYS, reader("gateway-epp", workload="prod/chat"), namespace="prod")
    assert [(r.workload, dict(r.values)) for r in picked] == [
        (
            "prod/chat",
            {
                "requests_started_total": 120.0, "prompt_tokens_total": 90_000.0, "generation_tokens_total": 30_000.0,
                "num_requests_running": 8.0, "kv_cache_usage_ratio": 0.5,
            },
        )
    ]  # fmt: skip
    (proxied,) = readings_of(GATEWAYS, reader("envoy"), namespace="prod")
    assert (proxied.workload, proxied.values) == (
        "chat",
        {
            "requests_started_total": 121.0, "requests_finished_total": 110.0, "num_requests_running": 9.0,
            "num_requests_waiting": 2.0,
        },
    )  # fmt: skip
