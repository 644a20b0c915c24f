"""Operators' words as the decide stage hears them: from every partition, and taken into its state once.

A partition that is behind repeats words long after the others, so an id is remembered until no partition can still
bring it. That is asked of the brokers' clock and of the partitions' progress, never of a publisher's clock (ADR 25).
"""

from __future__ import annotations

from typing import Any

import msgspec

from agents.decide.state import DecideState, OperatorWord
from agents.records import PlanOf
from agents.situation import Pin
from streams.pages.page import Control
from streams.topics import DAY_MS

# Ids that are remembered in any case: someone may send a word again.
CONTROLS_KEPT = 256
# Between the copies of a word on two partitions: a publisher's retries, and brokers' clocks.
_SPREAD_MS = 300_000
# What a partition without any plan has not read by then is gone: telemetry is kept for a day, in segments of a week.
_UNHEARD_MS = 8 * DAY_MS


def apply_controls(state: DecideState, plan: PlanOf[Any]) -> None:
    """Take what operators say in a plan into the state (a draft that the caller owns), once per id."""
    if not plan.controls:
        return
    known = set(state.control_ids)
    fresh = []
    for control in plan.controls:
        if control.control_id not in known:
            known.add(control.control_id)
            fresh.append(control.control_id)
            _obey(state, control)
    # The plan's stamp is that of a later record than the word's own; plans of earlier releases may have none.
    heard_ms = max(plan.end_stamp_ms, plan.origin_ts_ms)
    state.control_ids += tuple(fresh)
    state.control_stamps_ms += (heard_ms,) * len(fresh)


def forget_controls(state: DecideState, num_partitions: int) -> None:
    """Drop the oldest ids that every partition has passed.

    A slot closes no earlier than it ends on the brokers' clock, for grace >= skew, so a plan's origin says up to when
    its partition has brought what was said. Where event time lies in the past, it says less, and more is remembered.

    Args:
        num_partitions: of the pages topic.
    """
    passed_ms = min((mark.origin_ts_ms for mark in state.partitions.values()), default=0)
    if len(state.partitions) < num_partitions:
        passed_ms = min(passed_ms, state.clock_ms - _UNHEARD_MS)
    drop = 0
    while len(state.control_ids) - drop > CONTROLS_KEPT and state.control_stamps_ms[drop] + _SPREAD_MS < passed_ms:
        drop += 1
    state.control_ids = state.control_ids[drop:]
    state.control_stamps_ms = state.control_stamps_ms[drop:]


def _obey(state: DecideState, control: Control) -> None:
    """Change what a word says; one without meaning changes nothing."""
    if control.workload is None:
        if control.action in ("pause", "resume"):
            state.paused = control.action == "pause"
        return
    word = state.operator.get(control.workload, OperatorWord())
    if control.action in ("pause", "resume"):
        word = msgspec.structs.replace(word, paused=control.action == "pause")
    elif control.action == "mode" and control.mode in ("observe", "act"):
        word = msgspec.structs.replace(word, mode=control.mode)
    elif control.action == "unpin":
        word = msgspec.structs.replace(word, pin=None)
    elif control.action == "pin" and control.replicas is not None and control.replicas >= 0:
        pin = Pin(control.replicas, control.until_ts_ms, control.by, control.reason)
        word = msgspec.structs.replace(word, pin=pin)
    if word == OperatorWord():
        state.operator.pop(control.workload, None)
    else:
        state.operator[control.workload] = word
