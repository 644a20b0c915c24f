"""Exporters beside the common ones: AMD's devices, nvidia_gpu_exporter, StatefulSets of kube-state-metrics."""

from __future__ import annotations

import pytest

from streams.records.facts import FleetFacts
from streams.records.schema import FleetRecord, SampleRecord
from tests.infra.collect.samples import TS_MS, packed, reader, readings_of

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
