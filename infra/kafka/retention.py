"""Notices internal topics that keep too little for the fleet, before a restart needs what they have dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import structlog

from infra.observability.health import Health
from streams.topics import Topics
from streams.windows.coarse import shortages

RETENTION_REMEDY = (
    "raise retention.bytes of the topic (advanced.kafka.pages_retention_bytes; pages.coarse: "
    "advanced.stream.max_workloads), or a restart will lack history"
)

log = structlog.get_logger()


@runtime_checkable
class ReadsBack(Protocol):
    """A kernel that is restored from logs of bounded size: the forecast stage's."""

    def needed_bytes(self) -> Mapping[str, int]: ...


def short_logs(kernels: Iterable[tuple[int, object]], topics: Topics) -> list[str]:
    """One clause per log of these (partition, kernel) pairs that keeps too little, as `topics` says what it keeps."""
    kept_bytes = topics.retention_bytes()
    clause_lists = [
        shortages(p, kernel.needed_bytes(), kept_bytes) for p, kernel in kernels if isinstance(kernel, ReadsBack)
    ]
    return [clause for clauses in clause_lists for clause in clauses]


class RetentionWatch:
    """Says so in `/readyz` and, when it begins, in the log."""

    def __init__(self, topics: Topics, health: Health) -> None:
        self._topics = topics
        self._health = health
        self._short = False

    def look(self, kernels: Iterable[tuple[int, object]]) -> None:
        """At the (partition, kernel) pairs of now."""
        short = short_logs(kernels, self._topics)
        if short and not self._short:
            log.warning("retention_short", logs=short, remedy=RETENTION_REMEDY)
        if short or self._short:
            message = "; ".join([*short, RETENTION_REMEDY]) if short else ""
            self._health.set_check("retention", not short, message, required=False)
        self._short = bool(short)
