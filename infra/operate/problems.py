"""What `status`, `explain` and `doctor` report beside decisions: refused and unusable telemetry, open transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final

from infra.console.errors import HarmonyError
from infra.console.text import some
from infra.explain.dead_letters import DeadLetterView, Notice, notices, read_letter, refusals
from infra.kafka.admin import TopicAdmin
from infra.kafka.tail import TopicTail
from infra.kafka.transactions import transactions_of
from streams.runtime.transactions import OpenTransaction, overdue
from streams.topics import Topics

# How far back refused records are counted, and how many of a partition are read.
WINDOW_S: Final = 3_600
_MOST_LETTERS: Final = 500
_MOST_SENTENCES: Final = 5


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead-letter topic of the last hour.

    Attributes:
        refused: `3 (schema 2, key 1), the newest at ...`; "" for none.
        notices: what lasts of unusable telemetry.
    """

    refused: str
    notices: tuple[Notice, ...]


def recent_letters(tail: TopicTail) -> Letters:
    """Read the dead letters of the last hour.

    Raises:
        HarmonyError: the topic cannot be read.
    """
    now_ms = round(time() * 1000)
    records, num_unread = tail.since(now_ms - WINDOW_S * 1000, _MOST_LETTERS)
    letters: Sequence[DeadLetterView] = [read_letter(record) for record in records]
    refused = refusals(letters)
    if refused and num_unread:
        refused = f"{num_unread} and {refused}"
    return Letters(refused, tuple(notices(letters, now_ms)))


class Problems:
    """What is wrong with the topics of a fleet, as far as this user may read them.

    Attributes:
        letters: None where the dead letters cannot be read.
        transactions: open ones, by topic and partition.
    """

    def __init__(self, brokers: str, topics: Topics, security: Mapping[str, Any] | None = None) -> None:
        self._brokers = brokers
        self.letters: Letters | None = None
        self.transactions: Sequence[OpenTransaction] = ()
        try:
            with TopicTail(brokers, topics.dead_letters, security=security) as tail:
                self.letters = recent_letters(tail)
        except HarmonyError as error:
            self._unread = error.message
        with TopicAdmin(brokers, security) as admin:
            self.transactions = overdue(transactions_of(topics, admin, brokers, security)[0])

    def sentences(self, workload: str | None = None) -> Iterator[str]:
        """One for each problem, or each that concerns a workload."""
        for one in self.transactions:
            yield f"{one.sentence(self._brokers)}."
        if self.letters is None:
            yield f"Refused records cannot be counted: {self._unread}"
            return
        own = [notice for notice in self.letters.notices if workload in (None, notice.workload)]
        for notice in own[:_MOST_SENTENCES]:
            yield f"{notice.sentence()}."
        if len(own) > _MOST_SENTENCES:
            more = some([notice.workload for notice in own[_MOST_SENTENCES:]], _MOST_SENTENCES)
            yield f"Telemetry of more workloads cannot be used: {more}; `harmony dlq list --reason unused` says why."
        if self.letters.refused and workload is None:
            yield f"Records refused within the hour: {self.letters.refused}; `harmony dlq list` shows them."
