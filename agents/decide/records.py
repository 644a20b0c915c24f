"""Decisions and commands as they are published: bodies without wall time, ids and bytes fixed by the log alone."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote

import msgspec

from agents.decide.frame import Frame
from agents.decide.guards.chain import Guarded
from agents.decide.state import LastCommand, observed_replicas
from agents.policy import Slo, WorkloadSpec
from agents.records import (
    Command,
    Decision,
    Fingerprint,
    ForecastView,
    ReplicaView,
    RiskView,
    Target,
    WorkloadPlan,
    decision_id,
)
from agents.workload.units import INDICATOR_OF, UNIT_OF
from streams.log import OutRecord

_ENCODER = msgspec.json.Encoder()
_DECISIONS = msgspec.json.Decoder(Decision)
_COMMANDS = msgspec.json.Decoder(Command)
_Record = TypeVar("_Record", Decision, Command)


def command_id(fleet: str, workload: str, origin_ts_ms: int, replicas: int, epoch: int) -> str:
    """Deterministic id of a change of replicas; later leases of the same count keep it."""
    text = "\x1f".join((fleet, workload, str(origin_ts_ms), str(replicas), str(epoch)))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def build_decision(
    frame: Frame,
    plan: WorkloadPlan,
    spec: WorkloadSpec | None,
    mode: str,
    current: int | None,
    guarded: Guarded | None,
    last: LastCommand | None,
    command: bool,
) -> Decision:
    """The decision of one workload. `guarded` None: nothing to count from, so it holds with the plan's reason."""
    policy, origin = frame.policy, frame.origin_ts_ms
    slo = spec.slo if spec else Slo()
    fingerprint = Fingerprint(frame.policy_fingerprint, frame.plan.model_fingerprint)
    final = None if guarded is None else guarded.final
    if plan.refused == "retired":
        action, final = "retired", None
    elif final is None or current is None or final == current:
        action = "hold"
    else:
        action = "up" if final > current else "down"
    lease = None
    if command and final is not None:
        if last is not None and (last.replicas, last.epoch) == (final, policy.epoch):
            lease = last.command_id
        else:
            lease = command_id(policy.fleet, plan.workload, origin, final, policy.epoch)
    return Decision(
        decision_id=decision_id(policy.fleet, plan.workload, origin, fingerprint.policy, fingerprint.model),
        workload=plan.workload,
        origin_ts_ms=origin,
        mode=mode,
        action=action,
        reason=guarded.reason if guarded is not None else plan.refused or "no_fleet_facts",
        replicas=ReplicaView(
            ready=plan.fleet.ready if plan.fleet else None,
            pending=plan.fleet.pending if plan.fleet else None,
            current=current,
            proposed=plan.proposed,
            final=final,
        ),
        risk=_risk(plan, policy.epsilon_of(slo), slo.objective, final),
        forecast=ForecastView(
            frame.plan.model_fingerprint,
            plan.forecast_source,
            plan.indicator or INDICATOR_OF[UNIT_OF[spec.role if spec else "both"]],
            "1/s",
            plan.window_s,
            plan.peak,
            plan.surge,
            plan.jumps,
        ),
        capacity_per_replica=plan.capacity,
        lead_time_s=plan.lead_time_s,
        proposer=plan.proposer,
        guards=guarded.steps if guarded is not None else (),
        shadow=_others(plan),
        inputs=plan.inputs,
        fingerprint=fingerprint,
        command_id=lease,
    )


def _others(plan: WorkloadPlan) -> dict[str, int]:
    """What other rules than the one that the proposal rests on would have; the reactive one always, to compare with."""
    others = {proposer: count for proposer, count in plan.proposals.items() if proposer != plan.proposer}
    return others if plan.reactive_replicas is None else {**others, "reactive": plan.reactive_replicas}


def _risk(plan: WorkloadPlan, epsilon: float, objective: float, final: int | None) -> RiskView:
    levels = sorted(plan.risks, key=lambda r: r.replicas)
    stderr = next((r.p_miss_stderr for r in levels if r.replicas == final), None)
    if stderr is not None and not math.isfinite(stderr):
        stderr = None
    bound = next((c for c in plan.classes if c.name == plan.slo_class), None)
    return RiskView(
        epsilon=epsilon if plan.epsilon is None else plan.epsilon,
        objective=objective if bound is None else bound.objective,
        p_miss={str(r.replicas): r.p_miss for r in levels if math.isfinite(r.p_miss)},
        p_miss_stderr=stderr,
        budget_left_ratio=plan.budget_left_ratio,
        p_needed=plan.p_needed,
        slo_class=plan.slo_class,
        classes=plan.classes,
        miss_share={str(r.replicas): r.miss_share for r in levels if math.isfinite(r.miss_share)},
        bearable_share=plan.bearable_share,
        trial=plan.trial,
        promises=plan.promises,
    )


def build_command(frame: Frame, plan: WorkloadPlan, decision: Decision, spec: WorkloadSpec | None) -> Command | None:
    """The lease that a decision orders; None when it orders none."""
    final, observed = decision.replicas.final, observed_replicas(plan.fleet)
    if observed is None:
        observed = decision.replicas.current
    if decision.command_id is None or final is None or observed is None or spec is None:
        return None
    target = spec.target
    return Command(
        command_id=decision.command_id,
        decision_id=decision.decision_id,
        workload=decision.workload,
        target=Target(target.api_version, target.kind, target.namespace, target.name),
        replicas=final,
        expected_current=observed,
        epoch=frame.policy.epoch,
        sequence=frame.sequence,
        issued_ts_ms=decision.origin_ts_ms,
        valid_until_ts_ms=decision.origin_ts_ms + frame.lease_ms,
        reason=decision.reason,
        p_miss=decision.risk.p_miss.get(str(final)),
        epsilon=decision.risk.epsilon,
    )


def encode_decision(decision: Decision) -> bytes:
    return _ENCODER.encode(decision)


def decode_decision(value: bytes) -> Decision:
    """Raises msgspec.MsgspecError when the bytes are not a decision of this version."""
    return _of_this_version(_DECISIONS, value)


def encode_command(command: Command) -> bytes:
    return _ENCODER.encode(command)


def decode_command(value: bytes) -> Command:
    """Raises msgspec.MsgspecError when the bytes are not a command of this version."""
    return _of_this_version(_COMMANDS, value)


def _of_this_version(decoder: msgspec.json.Decoder[_Record], value: bytes) -> _Record:
    try:
        record = decoder.decode(value)
    except UnicodeDecodeError as error:  # of a string inside, which is none of msgspec's own errors
        raise msgspec.ValidationError(f"it is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.ValidationError("it is nested too deep") from None
    if record.v != 1:
        # The same names may mean something else there, and nobody may obey what he does not understand.
        raise msgspec.ValidationError(f"its version is {record.v}, this release reads 1")
    return record


def decision_record(topic: str, fleet: str, decision: Decision) -> OutRecord:
    key = decision.workload.encode()
    headers = _headers("harmony.decision.v1", decision.decision_id, fleet, key, decision.origin_ts_ms)
    return OutRecord(topic, key, encode_decision(decision), headers=headers)


def command_record(topic: str, fleet: str, command: Command) -> OutRecord:
    identity = f"{command.command_id}-{command.epoch}-{command.sequence}"
    key = command.workload.encode()
    headers = _headers("harmony.command.v1", identity, fleet, key, command.issued_ts_ms)
    return OutRecord(topic, key, encode_command(command), headers=headers)


def _headers(kind: str, identity: str, fleet: str, subject: bytes, ts_ms: int) -> tuple[tuple[str, bytes], ...]:
    """CloudEvents 1.0, binary mode of the Kafka binding: the body stays plain JSON, the key stays the key.

    Time is event time, so that a replay of the log gives the same headers too.
    """
    version, what, whence, when, form = _shared_headers(kind, fleet, ts_ms)
    return version, what, ("ce_id", identity.encode()), whence, ("ce_subject", subject), when, form


@lru_cache(64)
def _shared_headers(kind: str, fleet: str, ts_ms: int) -> tuple[tuple[str, bytes], ...]:
    """Those that all workloads of a fleet have in common at a time: of a large fleet they are held once."""
    return (
        ("ce_specversion", b"1.0"),
        ("ce_type", kind.encode()),
        # A URI reference by the specification, so a fleet's name needs its odd characters escaped.
        ("ce_source", quote(f"harmony/{fleet}", safe="/-._~").encode()),
        ("ce_time", _rfc3339(ts_ms).encode()),
        ("content-type", b"application/json"),
    )


def _rfc3339(ts_ms: int) -> str:
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
