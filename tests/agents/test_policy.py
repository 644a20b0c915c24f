"""A policy's fingerprint stands in stored records; what many workloads declare alike is held once."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from agents.policy import (
    BatchRule,
    CalendarRule,
    IdleRule,
    NightlyBatch,
    Policy,
    Schedule,
    Slo,
    SloClass,
    TargetRef,
    WorkloadGuards,
    WorkloadSpec,
)

EVERYTHING = WorkloadSpec(
    "prod/chat",
    target=TargetRef(name="chat"),
    slo=Slo(1.5, 0.1, 0.995, (SloClass("paid", 1.5, 0.1, 0.995), SloClass("free", 8.0, 0.4, 0.9, 0.2))),
    schedule=Schedule("Europe/Berlin", (CalendarRule("day", (0, 1, 2, 3, 4), 480, 1080, 2, 9),)),
    zero=IdleRule(60.0, 0.1),
    batch=BatchRule(900.0, (NightlyBatch("report", 1e6, (5, 6), 0, 300),)),
    guards=WorkloadGuards(up_ratio=2.0, down_replicas=3),
)
SPECS = st.builds(
    WorkloadSpec,
    st.sampled_from(["a", "b", "c"]),
    slo=st.builds(Slo, st.sampled_from([1.0, 2.0])),
    zero=st.builds(IdleRule, st.sampled_from([1.0, 2.0])),
    guards=st.builds(WorkloadGuards, up_replicas=st.sampled_from([None, 1])),
)


def test_the_fingerprint_of_a_release_is_that_of_the_next() -> None:
    """Where a field is added, or a default changed, this changes, and the changelog says so."""
    assert Policy(workloads=(EVERYTHING, WorkloadSpec("prod/code"))).fingerprint() == "f18a04b762eb2782"


@given(st.lists(SPECS, max_size=6))
def test_it_is_over_every_field_of_every_workload(specs: list[WorkloadSpec]) -> None:
    policy = Policy(workloads=tuple(specs))
    body = orjson.dumps(asdict(policy), option=orjson.OPT_SORT_KEYS)
    assert policy.fingerprint() == hashlib.blake2b(body, digest_size=8).hexdigest()


@given(st.lists(SPECS, max_size=6))
def test_what_is_declared_alike_is_one_object(specs: list[WorkloadSpec]) -> None:
    policy = Policy(workloads=tuple(specs))
    assert policy.workloads == tuple(specs)
    assert len({id(spec.slo) for spec in policy.workloads}) == len({spec.slo for spec in specs})
    assert len({id(spec.guards) for spec in policy.workloads}) == len({spec.guards for spec in specs})


@given(st.lists(SPECS, max_size=6))
def test_the_limits_of_a_workload_are_the_fleets_but_for_its_own(specs: list[WorkloadSpec]) -> None:
    policy = Policy(workloads=tuple(specs))
    for name in ("a", "b", "c"):
        spec = policy.spec(name)
        own = spec.guards.up_replicas if spec is not None else None
        expected = policy.guards if own is None else replace(policy.guards, up_replicas=own)
        assert policy.limits(name) == expected
