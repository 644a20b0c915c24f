"""Exporters beside the common ones: AMD's devices, nvidia_gpu_exporter, StatefulSets, engines inside Ray."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from infra.collect.mapping.profiles import shipped_profiles
from infra.collect.mapping.readings import metric_names
from streams.records.facts import FleetFacts
from streams.records.schema import FleetRecord, SampleRecord
from tests.infra.collect.samples import TS_MS, VLLM, packed, reader, readings_of

MIB = 1 << 20
POD = 'namespace="prod",pod="chat-7b-5d9c7b6f4-x2k8p"'


@pytest.mark.parametrize("prefix", ["", "amd_"])
def test_amds_device_metrics_exporter(prefix: str) -> None:
    text = f"""\
{prefix}gpu_gfx_activity{{gpu_id="3",hostname="node7",{POD}}} 87
{prefix}gpu_used_vram{{gpu_id="3",hostname="node7",{POD}}} 180000
{prefix}gpu_total_vram{{gpu_id="3",hostname="node7",{POD}}} 196592
{prefix}gpu_package_power{{gpu_id="3",hostname="node7",{POD}}} 713
{prefix}gpu_edge_temperature{{gpu_id="3",hostname="node7",{POD}}} 61
"""
    (record,) = packed(readings_of(text, reader(workload="{namespace}/{pod_owner}")))
    assert isinstance(record, SampleRecord)
    assert record.workload == "prod/chat-7b"
    (sample,) = record.samples
    assert sample.source == "node7/3"
    assert sample.values == {
        "sm_active_ratio": 0.87,
        "memory_used_bytes": 180_000.0 * MIB,
        "memory_total_bytes": 196_592.0 * MIB,
        "power_w": 713.0,
        "temperature_c": 61.0,
    }


def test_nvidia_gpu_exporter_speaks_in_base_units() -> None:
    text = f"""\
nvidia_smi_utilization_gpu_ratio{{uuid="GPU-1",{POD}}} 0.62
nvidia_smi_memory_used_bytes{{uuid="GPU-1",{POD}}} 6.0e10
nvidia_smi_memory_total_bytes{{uuid="GPU-1",{POD}}} 8.5e10
nvidia_smi_power_draw_watts{{uuid="GPU-1",{POD}}} 402.5
nvidia_smi_temperature_gpu{{uuid="GPU-1",{POD}}} 55
"""
    (record,) = packed(readings_of(text, reader(workload="{namespace}/{pod_owner}")))
    assert isinstance(record, SampleRecord)
    assert [s.source for s in record.samples] == ["h:8000/GPU-1"]
    assert record.samples[0].values == {
        "sm_active_ratio": 0.62,
        "memory_used_bytes": 6.0e10,
        "memory_total_bytes": 8.5e10,
        "power_w": 402.5,
        "temperature_c": 55.0,
    }


def test_replica_counts_of_a_stateful_set() -> None:
    text = """\
kube_statefulset_replicas{namespace="prod",statefulset="chat-7b"} 5
kube_statefulset_status_replicas{namespace="prod",statefulset="chat-7b"} 7
kube_statefulset_status_replicas_ready{namespace="prod",statefulset="chat-7b"} 4
"""
    (record,) = packed(readings_of(text, reader()))
    assert isinstance(record, FleetRecord)
    assert record.workload == "prod/chat-7b"
    assert [facts for _, facts in record.facts] == [FleetFacts(TS_MS, 4, 1, 2, 5)]


RAY_LABELS = (
    'Component="core_worker",NodeAddress="10.1.113.171",SessionName="session_2025-12-01_11-05-34_460418_3579",'
    'Version="2.52.0",WorkerId="{worker}",ReplicaId="{replica}"'
)


def through_ray(
    text: str, colon: str = "_", counters: Sequence[str] = ("", "_total"), replica: str = "3r4e76ag"
) -> str:
    """What Ray's metrics agent exports of an engine; older releases export each counter under two names."""
    labels = RAY_LABELS.format(worker=f"6f8b9bc4{replica}", replica=replica)
    lines = []
    for line in text.splitlines():
        if line.startswith("#") or not line.startswith("vllm:"):
            continue
        name, rest = line.split("{", 1)
        name = f"ray_vllm{colon}{name.removeprefix('vllm:')}"
        names = [name.removesuffix("_total") + c for c in counters] if name.endswith("_total") else [name]
        lines += [f"{each}{{{labels},{rest}\n" for each in names]
    return "".join(lines)


@pytest.mark.parametrize("colon", ["_", ":"])
@pytest.mark.parametrize("counters", [("_total",), ("",), ("", "_total")])
def test_an_engine_inside_ray_reads_as_it_does_outside(colon: str, counters: tuple[str, ...]) -> None:
    (inside,) = readings_of(through_ray(VLLM, colon, counters), reader())
    (outside,) = readings_of(VLLM, reader("vllm", workload="{model_name}"))
    assert (inside.values, inside.hists) == (outside.values, outside.hists)
    assert (inside.kind, inside.workload, inside.source) == ("requests", "acme/chat-7b", "3r4e76ag")


def test_each_replica_that_a_node_of_ray_exports_is_a_source() -> None:
    text = through_ray(VLLM) + through_ray(VLLM.replace(" 4.0", " 9.0"), replica="k2x8p9qd")
    found = {r.source: r.values["num_requests_running"] for r in readings_of(text, reader(), namespace="prod")}
    assert found == {"3r4e76ag": 4.0, "k2x8p9qd": 9.0}
    assert {r.workload for r in readings_of(text, reader(), namespace="prod")} == {"prod/acme/chat-7b"}


def test_every_metric_of_the_engine_has_its_name_inside_ray() -> None:
    plain, inside = (metric_names(shipped_profiles()[name]) for name in ("vllm", "ray-vllm"))
    renamed = {
        f"ray_vllm{colon}{name.removeprefix('vllm:')}" for name in plain if name.startswith("vllm:") for colon in "_:"
    }
    assert inside == renamed
