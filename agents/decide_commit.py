"""The body of the decide stage's commit record: everything the next output reads; `streams.runtime.commits` seals it."""

from __future__ import annotations

import msgspec

from agents.decide.state import DecideState
from agents.own_fleet import check_fleet
from agents.policy import Policy
from streams.config import StreamConfig
from streams.log import ContractBroken, OtherSettings
from streams.runtime.commits import Commit, pack
from streams.unreadable import UNREADABLE

STAGE = "decide"
_REMEDY = ", or accept a new start with `harmony state reset`"


class DecideCommit(msgspec.Struct, frozen=True):
    """`resume_offset` is the next `plans` offset; `policy_fingerprint` was in force when it was written."""

    resume_offset: int
    policy_fingerprint: str
    fleet: str
    epoch: int
    step_ms: int
    state: DecideState
    v: int = 1


_DECODER = msgspec.msgpack.Decoder(DecideCommit)


def pack_commit(commit: DecideCommit) -> bytes:
    """Equal states give equal bytes."""
    return pack(commit)


def unpack_commit(commit: Commit, policy: Policy, stream: StreamConfig) -> DecideCommit:
    """Read a commit record that this policy may go on from.

    Raises:
        ContractBroken: foreign, of another version, fleet or step, or of a later epoch; names the remedy.
    """
    try:
        body = _DECODER.decode(commit.body)
    except UNREADABLE as error:
        raise ContractBroken(
            f"the decide stage's commit record cannot be read ({error}): run the release that wrote it{_REMEDY}"
        ) from error
    if body.v != 1:
        raise OtherSettings(
            f"the decide stage's commit record has version {body.v}, this release reads 1: "
            f"run the release that wrote it{_REMEDY}"
        )
    check_fleet(body.fleet, policy.fleet, "the commits topic")
    if body.step_ms != stream.step_ms:
        raise OtherSettings(
            f"the committed state has a step of {body.step_ms} ms, the configuration {stream.step_ms} ms: "
            f"restore the old step{_REMEDY}"
        )
    if body.epoch > policy.epoch:
        raise OtherSettings(
            f"the committed state has epoch {body.epoch}, the policy {policy.epoch}: actuators would refuse every "
            f"command; set the epoch to {body.epoch}{_REMEDY}"
        )
    state = body.state
    if len(state.control_stamps_ms) != len(state.control_ids):  # releases without them wrote it
        state.control_stamps_ms = (commit.stamp_ms,) * len(state.control_ids)
    return body
