"""From samples of exporters to telemetry records that stage 1 accepts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.collect.mapping.profiles import choose, shipped_profiles
from infra.collect.mapping.readings import Reader, metric_names
from infra.collect.mapping.workloads import Identities
from infra.collect.points import Point
from infra.collect.publisher import pack, replicas_from_sources
from streams.records.facts import FleetFacts, HistogramState
from streams.records.schema import FleetRecord, SampleRecord
from tests.infra.collect.samples import (  # fmt: skip
    DCGM,
    DYNAMO,
    KUBE,
    SGLANG,
    TGI,
    TOPICS,
    TRITON,
    TRTLLM,
    TS_MS,
    VLLM,
    accepted,
    packed,
    reader,
    readings_of,
)

MIB = 1 << 20


def test_vllm() -> None:
    (record,) = packed(readings_of(VLLM, reader(), namespace="prod", pod="chat-7b-5d9c7b6f4-x2k8p"))
    assert isinstance(record, SampleRecord)
    assert record.workload == "prod/chat-7b"
    (sample,) = record.samples
    assert (sample.source, sample.ts_ms) == ("chat-7b-5d9c7b6f4-x2k8p", TS_MS)
    assert sample.values == {
        "requests_started_total": 103.0,
        "requests_finished_total": 96.0,
        "prompt_tokens_total": 52000.0,
        "uncached_prompt_tokens_total": 52000.0,
        "generation_tokens_total": 17000.0,
        "num_requests_running": 4.0,
        "num_requests_waiting": 3.0,
        "kv_cache_usage_ratio": 0.41,
    }
    assert sample.hists == {
        "ttft_s": HistogramState((0.5, 1.0), (80.0, 95.0), 100.0, 41.5),
        "tpot_s": HistogramState((0.05,), (900.0,), 950.0, 30.25),
    }


def test_dcgm_prefers_profiling_counters_and_leaves_idle_devices_out() -> None:
    by = reader()
    (record,) = packed(readings_of(DCGM, by))
    assert isinstance(record, SampleRecord)
    assert record.workload == "prod/chat-7b"
    assert [s.source for s in record.samples] == ["node3/0"]
    assert record.samples[0].values == {
        "sm_active_ratio": 0.83,
        "tensor_active_ratio": 0.31,
        "memory_used_bytes": 70000.0 * MIB,
        "memory_total_bytes": 81559.0 * MIB,
        "power_w": 612.5,
        "temperature_c": 64.0,
    }
    assert by.tally.unplaced == {("dcgm", "no label names the workload: it would be {namespace}/{pod_owner}"): 1}


@pytest.mark.parametrize(
    "blank",
    ["9223372036854775794", "9.223372036854775794e18", "2147483632", "140737488355328", "NaN", "+Inf", "-Inf"],
)
def test_blanks_of_dcgm_are_no_measurements(blank: str) -> None:
    line = f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",Hostname="n"}} {blank}\n'
    assert readings_of(line, reader("dcgm", workload="w")) == []
    both = line + 'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="n"} 50\n'
    (reading,) = readings_of(both, reader("dcgm", workload="w"))
    assert reading.values == {"temperature_c": 50.0}


def test_a_blank_of_the_first_choice_lets_the_second_one_in() -> None:
    text = DCGM.replace(" 0.83", " 140737488355330")
    (reading,) = readings_of(text, reader("dcgm"))
    assert reading.values["sm_active_ratio"] == pytest.approx(0.97)


def test_mig_devices_are_sources_of_their_own() -> None:
    text = "".join(
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{n}",Hostname="n"}} 0.{n}\n'
        for n in (1, 2)
    )
    assert {r.source for r in readings_of(text, reader("dcgm", workload="w"))} == {"n/0/1", "n/0/2"}


def test_sglang_ranks_are_one_batch() -> None:
    (record,) = packed(readings_of(SGLANG, reader()))
    assert isinstance(record, SampleRecord)
    assert record.workload == "qwen"
    values = record.samples[0].values
    assert values["num_requests_running"] == 12.0
    assert values["requests_started_total"] == 46.0
    assert (values["requests_finished_total"], values["kv_cache_usage_ratio"]) == (41.0, 0.28)
    assert record.samples[0].hists["ttft_s"].count == 44.0


def test_trtllm_serve() -> None:
    (record,) = packed(readings_of(TRTLLM, reader()))
    assert isinstance(record, SampleRecord)
    assert record.samples[0].values == {
        "requests_started_total": 82.0,
        "requests_finished_total": 77.0,
        "num_requests_running": 5.0,
        "num_requests_waiting": 1.0,
        "kv_cache_usage_ratio": 0.62,
    }


def test_triton_with_its_devices() -> None:
    requests, gpu = packed(readings_of(TRITON, reader("triton", "triton-gpu", workload="t")))
    assert isinstance(requests, SampleRecord)
    assert isinstance(gpu, SampleRecord)
    sample = requests.samples[0]
    assert sample.values["requests_finished_total"] == 505.0
    assert sample.values["requests_started_total"] == 509.0
    assert sample.values["num_requests_running"] == 9.0
    assert sample.values["num_requests_waiting"] == 2.0
    assert sample.values["kv_cache_usage_ratio"] == 0.25
    assert sample.hists["ttft_s"] == HistogramState((0.1,), (300.0,), 505.0, 60.6)
    assert gpu.samples[0].values == {
        "sm_active_ratio": 0.5, "memory_used_bytes": 1000.0, "memory_total_bytes": 4000.0, "power_w": 200.5
    }  # fmt: skip


def test_tgi() -> None:
    (record,) = packed(readings_of(TGI, reader(), job="tgi"))
    assert isinstance(record, SampleRecord)
    assert record.workload == "tgi"
    values = record.samples[0].values
    assert (values["requests_started_total"], values["requests_finished_total"]) == (150.0, 140.0)
    assert (values["prompt_tokens_total"], values["generation_tokens_total"]) == (12000.0, 9000.0)
    assert set(record.samples[0].hists) == {"tpot_s"}


def test_dynamos_frontend() -> None:
    (reading,) = readings_of(DYNAMO, reader(), namespace="prod")
    assert (reading.workload, reading.source) == ("prod/llama", "h:8000")
    assert reading.values == {
        "requests_started_total": 50.0,
        "requests_finished_total": 42.0,
        "num_requests_running": 8.0,
        "num_requests_waiting": 3.0,
        "prompt_tokens_total": 9000.0,
        "uncached_prompt_tokens_total": 9000.0,
        "generation_tokens_total": 4000.0,
    }
    counted = DYNAMO + 'dynamo_frontend_requests_started_total{model="llama"} 51\n'
    assert readings_of(counted, reader())[0].values["requests_started_total"] == 51.0
    packed([reading])


def test_replica_counts_of_kubernetes() -> None:
    (record,) = packed(readings_of(KUBE, reader()))
    assert record == FleetRecord("prod/chat-7b", [("kube-state-metrics", FleetFacts(TS_MS, 6, 1, 0, 7))])


def test_a_replica_count_that_is_not_told_is_not_zero() -> None:
    assert readings_of(KUBE.replace("kube_deployment_status_replicas{", "other{"), reader()) == []


def test_replicas_counted_by_the_engines_that_answer() -> None:
    by = reader("vllm", workload="w")
    two = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    readings = readings_of(two, by, pod="a") + readings_of(VLLM, by, TS_MS + 7, pod="b")
    (facts,) = replicas_from_sources(readings, "collect")
    (record,) = packed([facts])
    assert record == FleetRecord("w", [("collect", FleetFacts(TS_MS + 7, 2, 0, 0))])


# What no record may hold.


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('vllm:kv_cache_usage_perc{engine="0"} 41.0', "kv_cache_usage_ratio"),
        ('vllm:num_requests_running{engine="0"} -1', "num_requests_running"),
        ('vllm:prompt_tokens_total{engine="0"} 9007199254740991.5', "prompt_tokens_total"),
    ],
)
def test_a_value_out_of_range_is_left_out_and_counted(line: str, field: str) -> None:
    by = reader("vllm", workload="w")
    (reading,) = readings_of(line + '\nvllm:num_requests_waiting{engine="0"} 1\n', by)
    assert reading.values == {"num_requests_waiting": 1.0}
    assert field.startswith("prompt") or by.tally.refused == {(field, "range"): 1}


def test_a_share_that_overshoots_by_rounding_is_one() -> None:
    (reading,) = readings_of("vllm:kv_cache_usage_perc 1.0000001\n", reader("vllm", workload="w"))
    assert reading.values == {"kv_cache_usage_ratio": 1.0}


def test_more_memory_used_than_there_is_leaves_the_total() -> None:
    by = reader("triton-gpu", workload="w")
    text = 'nv_gpu_memory_used_bytes{gpu_uuid="a"} 5\nnv_gpu_memory_total_bytes{gpu_uuid="a"} 4\n'
    (reading,) = readings_of(text, by)
    assert reading.values == {"memory_total_bytes": 4.0}
    assert by.tally.refused == {("memory_used_bytes", "range"): 1}


@pytest.mark.parametrize(
    "broken",
    [
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="acme/chat-7b"} 99.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.75",model_name="other"} 1.0',
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="acme/chat-7b"} -1',
    ],
)
def test_a_broken_histogram_is_left_out_and_the_rest_stays(broken: str) -> None:
    by = reader("vllm", workload="w")
    (reading,) = readings_of(VLLM + broken + "\n", by)
    assert set(reading.hists) == {"tpot_s"}
    assert sum(n for (name, _), n in by.tally.refused.items() if name == "ttft_s") == 1
    assert reading.values["num_requests_running"] == 4.0


def test_histograms_of_several_label_sets_are_added_up() -> None:
    name = "tgi_request_mean_time_per_token_duration"
    text = "".join(
        f'{name}_bucket{{method="{code}",le="0.01"}} 1\n{name}_bucket{{method="{code}",le="+Inf"}} 3\n'
        f'{name}_count{{method="{code}"}} 3\n{name}_sum{{method="{code}"}} 0.5\n'
        for code in ("a", "b")
    )
    (reading,) = readings_of(text, reader("tgi", workload="w"))
    assert reading.hists["tpot_s"] == HistogramState((0.01,), (2.0,), 6.0, 1.0)


def test_the_same_series_twice_counts_once() -> None:
    twice = readings_of(VLLM + VLLM, reader("vllm", workload="w"))
    assert twice == readings_of(VLLM, reader("vllm", workload="w"))


def test_many_sources_are_cut_into_records_below_the_limit() -> None:
    by = reader("vllm", workload="w")
    readings = [r for n in range(900) for r in readings_of(VLLM, by, TS_MS + n, pod=f"p{n}")]
    records = pack(readings, TOPICS)
    assert len(records) > 1
    assert all(len(record.value or b"") < 65_536 for record in records)
    decoded = accepted(records)
    assert [s.source for r in decoded if isinstance(r, SampleRecord) for s in r.samples] == [r.source for r in readings]


NAMES = sorted({name for profile in shipped_profiles().values() for name in metric_names(profile)})
LABELS = st.dictionaries(
    st.sampled_from(["instance", "pod", "namespace", "model_name", "gpu", "engine", "le", "mode", "request_type"]),
    st.one_of(st.sampled_from(["0", "0.5", "1", "+Inf", "a", "scheduled", "idle"]), st.text(max_size=8)),
    max_size=4,
)
VALUES = st.one_of(st.floats(), st.floats(0, 2), st.integers(0, 10).map(float), st.just(2.0**53), st.just(9.3e18))
POINTS = st.lists(st.builds(Point, st.sampled_from(NAMES), LABELS, st.integers(TS_MS, TS_MS + 3), VALUES), max_size=60)


@given(POINTS)
@settings(max_examples=150)
def test_whatever_is_read_stage_1_accepts_what_is_published(points: list[Point]) -> None:
    profiles = tuple(shipped_profiles().values())
    readings = Reader(profiles, Identities({}, (), "w")).read(points)
    packed(readings)
    for reading in readings:
        assert all(math.isfinite(value) for value in reading.values.values())


def test_nothing_known_is_passed_over_without_a_word() -> None:
    by = reader()
    assert by.read([Point("up", {"instance": "i"}, TS_MS, 1.0)]) == []
    assert by.tally.points == 0
    assert not choose(("vllm",)).rules
