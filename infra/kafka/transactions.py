"""Open transactions on HARMONY's topics, as somebody outside the workers finds them."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from time import time
from typing import Any

from infra.console.errors import HarmonyError
from infra.kafka.admin import TopicAdmin
from infra.kafka.tail import TopicTail
from streams.runtime.transactions import LogEnd, OpenTransaction, Place
from streams.topics import Topics


def open_transactions(
    ends: Mapping[Place, LogEnd], brokers: str, security: Mapping[str, Any] | None = None
) -> list[OpenTransaction]:
    """The oldest open transaction of each partition that has one.

    Args:
        ends: of `TopicAdmin.log_ends`. The age of a transaction needs the right to read its topic.
    """
    held = {place: end for place, end in ends.items() if end.num_unstable}
    return [
        OpenTransaction(*place, end.last_stable, end.num_unstable, _age_s(brokers, place, end, security))
        for place, end in sorted(held.items())
    ]


def transactions_of(
    topics: Topics, admin: TopicAdmin, brokers: str, security: Mapping[str, Any] | None = None
) -> tuple[list[OpenTransaction], int]:
    """Open transactions on the topics of a fleet, and how many of these topics there are."""
    ends = admin.log_ends([spec.name for spec in (*topics.specs(), topics.raw_spec())])
    return open_transactions(ends, brokers, security), len({topic for topic, _ in ends})


def _age_s(brokers: str, place: Place, end: LogEnd, security: Mapping[str, Any] | None) -> float:
    """Time since the broker has stamped the transaction's first record, which only a reader of all records gets."""
    topic, partition = place
    try:
        with TopicTail(brokers, topic, security=security, committed=False) as tail:
            first = next(tail.read({partition: (end.last_stable, end.last_stable + 1)}), None)
    except HarmonyError:
        return nan
    return nan if first is None else max(0.0, time() - first.stamp_ms / 1000)
