"""The demo's own `harmony.yaml`: what `harmony run` gives its workers, and what a user can read and copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from agents.policy import BatchRule, Policy, Slo, WorkloadGuards, WorkloadSpec
from infra.settings_schedule import batch_settings, schedule_settings
from streams.config import StreamConfig
from streams.topics import Topics

_PLANNING = (
    "epoch", "commit_s", "bearable_ratio", "doubt_ratio", "recurring_surges", "jumps", "plan_every", "max_horizon",
    "paths_screen", "paths_verify", "seed",
)  # fmt: skip
_HEADER = "# Written by `harmony run` for its workers; `harmony init` writes a commented one to start from.\n"


def settings_of(policy: Policy, stream: StreamConfig, topics: Topics) -> dict[str, Any]:
    """The mapping of a `harmony.yaml` that loads back as this policy, stream configuration and topics."""
    guards = asdict(policy.guards)
    max_gpus = guards.pop("fleet_max_gpus")
    return {
        "fleet": policy.fleet,
        "topic_prefix": topics.prefix,
        "partitions": topics.partitions,
        "step_s": stream.step_ms / 1000,
        "epsilon": policy.epsilon,
        "max_gpus": max_gpus,
        "workloads": [_workload(spec) for spec in policy.workloads],
        "advanced": {
            "stream": {
                "grace_s": stream.grace_ms / 1000,
                "skew_s": stream.skew_ms / 1000,
                "context_steps": stream.context_steps,
                "max_workloads": stream.max_workloads,
                "max_record_bytes": stream.max_record_bytes,
                "source_silence_steps": stream.source_silence_steps,
                "source_cap": stream.source_cap,
            },
            "planning": {name: getattr(policy, name) for name in _PLANNING},
            "guards": guards,
            "kafka": {"pages_retention_bytes": topics.pages_retention_bytes},
            # A lockstep run waits for every slot, so waiting for company only costs time.
            "worker": {"batch_deadline_ms": 5},
        },
    }


def _workload(spec: WorkloadSpec) -> dict[str, Any]:
    target = asdict(spec.target)
    target["apiVersion"] = target.pop("api_version")
    return {
        "id": spec.id,
        "target": target,
        "replicas": {"min": spec.min_replicas, "max": spec.max_replicas},
        "gpus_per_replica": spec.gpus_per_replica,
        "price_per_gpu_hour": spec.price_per_gpu_hour,
        "slo": _slo(spec.slo),
        "mode": spec.mode,
        "capacity_rps": spec.capacity_rps,
        "lead_time_s": spec.lead_time_s,
        "priority": spec.priority,
        "power_w_per_replica": spec.power_w_per_replica,
        **({"gpu_type": spec.gpu_type} if spec.gpu_type else {}),
        **({"role": spec.role} if spec.role != "both" else {}),
        **({"capacity_tokens_per_s": spec.capacity_tokens_per_s} if spec.capacity_tokens_per_s else {}),
        **({"capacity_off_by": spec.capacity_off_by} if spec.capacity_off_by else {}),
        **({"zero": asdict(spec.zero)} if spec.min_replicas == 0 else {}),
        **({"batch": batch_settings(spec.batch)} if spec.batch != BatchRule() else {}),
        **({"guards": asdict(spec.guards)} if spec.guards != WorkloadGuards() else {}),
        **({"schedule": schedule_settings(spec.schedule)} if spec.schedule else {}),
    }


def _slo(slo: Slo) -> dict[str, Any]:
    told = asdict(slo)
    classes, epsilon = told.pop("classes"), told.pop("epsilon")
    if classes:
        return {"classes": list(classes)}
    return told if epsilon is None else told | {"epsilon": epsilon}


def write_settings(
    path: Path,
    policy: Policy,
    stream: StreamConfig,
    topics: Topics,
    process: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write them where workers, and nobody else, can read them; `process` are sections of `advanced` to add."""
    settings = settings_of(policy, stream, topics)
    for name, keys in (process or {}).items():
        settings["advanced"][name] = {**settings["advanced"].get(name, {}), **keys}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(_HEADER + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
