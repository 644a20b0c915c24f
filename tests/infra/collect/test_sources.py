"""One source is one process or device: parts are put together, copies count once."""

from __future__ import annotations

import pytest

from infra.collect.formats.exposition import read_exposition
from infra.collect.mapping.profiles import choose
from infra.collect.mapping.readings import Assembler, Reader, SourceReading
from infra.collect.mapping.schema import ExporterProfile
from infra.collect.mapping.workloads import Identities
from infra.collect.points import Point
from tests.infra.collect.samples import DCGM, KUBE, TRITON, TS_MS, VLLM, reader, readings_of

RANKS = "".join(
    f'sglang:num_running_reqs{{dp_rank="{d}",engine_type="unified",model_name="m",tp_rank="{t}"}} {running}\n'
    f'sglang:num_queue_reqs{{dp_rank="{d}",engine_type="unified",model_name="m",tp_rank="{t}"}} {waiting}\n'
    f'sglang:token_usage{{dp_rank="{d}",engine_type="unified",model_name="m",tp_rank="{t}"}} {usage}\n'
    for d, running, waiting, usage in ((0, 9, 3, 0.25), (1, 5, 1, 0.75))
    for t in (0, 1)
)
COUNTERS = (
    'sglang:num_requests_total{model_name="m"} 80\nsglang:time_to_first_token_seconds_count{model_name="m"} 90\n'
    'sglang:prompt_tokens_total{model_name="m"} 1000\nsglang:generation_tokens_total{model_name="m"} 500\n'
)


def test_ranks_of_a_process_and_its_counters_are_one_source() -> None:
    (reading,) = readings_of(RANKS + COUNTERS, reader("sglang", workload="w"), pod="sg-0")
    assert reading.source == "sg-0"
    assert (reading.values["num_requests_running"], reading.values["num_requests_waiting"]) == (14.0, 4.0)
    assert reading.values["kv_cache_usage_ratio"] == 0.5
    assert reading.values["requests_started_total"] == 94.0


def test_engines_of_a_process_are_added_up() -> None:
    two = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    (one,) = readings_of(VLLM, reader("vllm", workload="w"))
    (both,) = readings_of(two, reader("vllm", workload="w"))
    for name, value in one.values.items():
        assert both.values[name] == (value if name == "kv_cache_usage_ratio" else 2 * value), name
    assert both.hists["ttft_s"].count == 2 * one.hists["ttft_s"].count


def test_a_series_without_the_label_of_the_workload_belongs_to_that_of_its_process() -> None:
    text = 'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_running{engine="0",model_name="m"} 4\n'
    (reading,) = readings_of(text, reader("vllm"))
    assert (reading.workload, reading.values) == ("m", {"num_requests_waiting": 3.0, "num_requests_running": 4.0})
    two = text + 'vllm:num_requests_running{engine="0",model_name="n"} 4\n'
    assert {r.workload: dict(r.values) for r in readings_of(two, reader("vllm"))} == {
        "m": {"num_requests_running": 4.0},
        "n": {"num_requests_running": 4.0},
    }


def copies(text: str, label: str, *values: str) -> str:
    """Every sample once for each value of a label; without the label for an empty one."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "process"))]
    return "".join(
        (line.replace("{", f'{{{label}="{value}",', 1) if value else line) + "\n" for value in values for line in lines
    )


@pytest.mark.parametrize(
    "label",
    [
        "prometheus_replica",
        "prometheus",
        "cluster_replica",
        "job",
        "endpoint",
        "receive",
        "tenant_id",
        "vm_account",
        "team",
    ],
)
@pytest.mark.parametrize("text", [VLLM, DCGM, TRITON, KUBE], ids=["vllm", "dcgm", "triton", "kube"])
def test_what_two_scrapers_have_read_counts_once(label: str, text: str) -> None:
    def values(page: str) -> list[tuple[str, str, dict[str, float]]]:
        readings = readings_of(page, reader(workload="w"), instance="h:1")
        return sorted((r.kind, r.source, dict(r.values)) for r in readings)

    assert values(copies(text, label, "a", "b")) == values(copies(text, label, "a"))
    assert values(copies(text, label, "a", "")) == values(copies(text, label, "a"))


def test_of_copies_the_later_value_of_a_counter_counts() -> None:
    old, new = VLLM, VLLM.replace("52000.0", "52100.0")
    page = copies(old, "prometheus_replica", "b") + copies(new, "prometheus_replica", "a")
    (reading,) = readings_of(page, reader("vllm", workload="w"))
    assert reading.values["prompt_tokens_total"] == 52100.0


def test_a_label_that_only_some_metrics_carry_is_no_mark_of_copies() -> None:
    text = VLLM.replace(
        'vllm:prompt_tokens_total{engine="0",model_name="acme/chat-7b"} 52000.0',
        'vllm:prompt_tokens_total{engine="0",model_name="acme/chat-7b",new="a"} 50000\n'
        'vllm:prompt_tokens_total{engine="0",model_name="acme/chat-7b",new="b"} 2000',
    )
    assert readings_of(text, reader("vllm", workload="w")) == readings_of(VLLM, reader("vllm", workload="w"))


def test_a_profile_of_ones_own_adds_up_but_for_labels_of_scrapers() -> None:
    profile = ExporterProfile.model_validate(
        {"name": "own", "kind": "requests", "fields": {"requests_started_total": "n"}}
    )
    text = 'n{path="/a",prometheus_replica="0"} 3\nn{path="/a",prometheus_replica="1"} 4\nn{path="/b"} 5\n'
    by = Reader((profile,), Identities(template="w"))
    (reading,) = by.read(read_exposition(text, by.reads, TS_MS, {"instance": "h"}))
    assert reading.values == {"requests_started_total": 9.0}


def test_a_device_that_pods_share_is_measured_once() -> None:
    text = "".join(
        f'{name}{{gpu="0",UUID="g",Hostname="n",vgpu="{n}",namespace="p",pod="emb-c69f6664f-{pod}"}} {value}\n'
        for n, pod in enumerate(("vkkcb", "2v922", "wrcxw"))
        for name, value in (("DCGM_FI_DEV_POWER_USAGE", 60.5), ("DCGM_FI_DEV_FB_USED", 9), ("DCGM_FI_DEV_FB_FREE", 6))
    )
    (reading,) = readings_of(text, reader("dcgm"))
    assert reading.values == {"power_w": 60.5, "memory_used_bytes": 9 * 2.0**20, "memory_total_bytes": 15 * 2.0**20}


def test_instances_of_a_divided_board_repeat_its_power() -> None:
    text = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",GPU_I_ID="{n}",Hostname="n"}} 52\n'
        f'DCGM_FI_DEV_FB_USED{{gpu="0",GPU_I_ID="{n}",Hostname="n"}} 1\n'
        for n in (3, 4)
    )
    whole = 'DCGM_FI_DEV_POWER_USAGE{gpu="1",Hostname="n"} 300\n'
    readings = readings_of(text + whole, reader("dcgm", workload="w"))
    assert {r.source: r.values.get("power_w") for r in readings} == {"n/0/3": None, "n/0/4": None, "n/1": 300.0}


# Triton's models that are made of others.


def served(*, waiting: int = 0, **models: int) -> str:
    """Counts of requests by model; an ensemble, whose name begins with `e`, has no queue."""
    return "".join(
        f'nv_inference_request_success{{model="{name}",version="1"}} {n}\n'
        f'nv_inference_request_failure{{model="{name}",version="1"}} 0\n'
        + (
            ""
            if name.startswith("e")
            else f'nv_inference_pending_request_count{{model="{name}",version="1"}} {waiting if name == "llm" else 0}\n'
        )
        for name, n in models.items()
    )


@pytest.mark.parametrize(
    ("models", "started"),
    [
        ({"ensemble": 59, "pre": 59, "llm": 59, "post": 59}, 59),
        ({"everything": 59, "pre": 59, "llm": 59, "post": 59}, 59),
        ({"ensemble": 0, "pre": 59, "llm": 59, "post": 59, "tensorrt_llm_bls": 59}, 59),
        ({"ensemble": 30, "pre": 59, "llm": 59, "post": 59, "tensorrt_llm_bls": 29}, 59),
        ({"llm_bls": 10, "llm": 10, "draft": 70}, 10),
        ({"llm": 10, "classifier": 70}, 80),
        ({"llm": 10}, 10),
    ],
)
def test_the_models_of_an_ensemble_serve_no_requests_of_their_own(models: dict[str, int], started: int) -> None:
    (reading,) = readings_of(served(**models), reader("triton", workload="w"))
    assert (reading.values["requests_started_total"], reading.values["requests_finished_total"]) == (started, started)
    (queued,) = readings_of(served(waiting=4, **models), reader("triton", workload="w"))
    assert queued.values["requests_started_total"] == started + 4


# Names and fallbacks.


def test_a_counter_is_known_without_its_suffix() -> None:
    text = VLLM.replace("prompt_tokens_total{", "prompt_tokens{").replace("request_success_total{", "request_success{")
    assert readings_of(text, reader("vllm", workload="w")) == readings_of(VLLM, reader("vllm", workload="w"))


def notes_of(text: str) -> tuple[list[str], list[SourceReading]]:
    notes: list[str] = []
    mapping = choose(("vllm",))
    by = Reader(mapping.profiles, Identities(template="w"), note=notes.append)
    readings = [
        r for n in range(3) for r in by.read(read_exposition(text, by.reads, TS_MS + n, {"instance": "h:8000"}))
    ]
    return notes, readings


def test_completions_in_place_of_arrivals_are_told_once_with_what_is_missing() -> None:
    notes, readings = notes_of("".join(line + "\n" for line in VLLM.splitlines() if "time_to_first" not in line))
    assert len(readings) == 3
    assert "requests_started_total" not in readings[0].values
    (note,) = notes
    assert note == (
        "requests_started_total of profile vllm cannot be made without vllm:time_to_first_token_seconds_count: "
        "completions stand in for arrivals, and lag behind a queue."
    )
    assert notes_of(VLLM)[0] == []


def test_pieces_that_come_in_any_order_are_the_same_source() -> None:
    by = reader("sglang", workload="w")
    points = read_exposition(RANKS + COUNTERS, by.reads, TS_MS, {"instance": "h"})
    expected = reader("sglang", workload="w").read(points)
    assembler = Assembler(by, 1.0)
    for point in reversed(points):
        assembler.add(Point(*point), 0.0)
    assert assembler.everything() == expected
