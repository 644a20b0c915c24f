"""Reports telemetry that is accepted and cannot be used: in the log, as a check and metric, and as notices to all.

A notice is a record of the dead-letter topic without a value: nothing was refused. It is repeated while its cause
lasts, so that commands and pages, which see no worker, can tell what lasts from what is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf, nan
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import structlog

from infra.console.text import printable, some
from infra.explain.dead_letters import NOTICE_EVERY_S, UNUSED
from infra.explain.telemetry import num_comparisons, problem_text
from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from streams.catalogue import SOURCES
from streams.log import OutRecord
from streams.topics import Topics

if TYPE_CHECKING:  # the other roles do without its compiled loops
    from streams.ingest.kernel import TelemetryProblem

# Time between two looks at the kernels, and names that are compared anew in one, of a fifth of a millisecond each:
# publishers choose the names. The next look continues where this one ends.
LOOK_S: Final = 5.0
_MAX_COMPARISONS: Final = 200
# Problems that are reported, and sentences in the check.
_MAX_PROBLEMS: Final = 64
_MAX_SENTENCES: Final = 3

log = structlog.get_logger()

Place = tuple[str, int]
# Place, kind and workload, and whether a source lacks something: then it is reported once more.
_Key = tuple[Place, str, str, bool]


@runtime_checkable
class ReportsProblems(Protocol):
    """A kernel that reads telemetry: the ingest stage's."""

    def problems(self) -> list[TelemetryProblem]: ...


class TelemetryNotices:
    """Remembers which problems have been reported, and when."""

    def __init__(self, topics: Topics, health: Health, meter: PrometheusMeter) -> None:
        self._topic, self._health, self._meter = topics.dead_letters, health, meter
        self._reported_s: dict[_Key, float] = {}
        self._looked_s = -inf

    def look(self, kernels: Iterable[tuple[Place, object]], now_s: float) -> list[OutRecord]:
        """Look at the kernels by topic and partition; returns the notices to publish."""
        if now_s - self._looked_s < LOOK_S:
            return []
        self._looked_s = now_s
        reads = [(place, kernel) for place, kernel in kernels if isinstance(kernel, ReportsProblems)]
        problems = [(place, problem) for place, kernel in reads for problem in kernel.problems()]
        problems.sort(key=lambda found: found[1].incomplete is None)
        lacking: Counter[str] = Counter()
        for _, problem in problems:
            if problem.incomplete is not None:
                lacking[problem.kind] += problem.incomplete.num_lacking
        texts: dict[_Key, str] = {}
        num_compared = num_comparisons()
        for place, problem in problems:
            if len(texts) == _MAX_PROBLEMS or num_comparisons() - num_compared > _MAX_COMPARISONS:
                break
            if (text := problem_text(problem)) is not None:
                texts[place, problem.kind, problem.workload, problem.incomplete is not None] = text
        for source in SOURCES:
            self._meter.gauge("incomplete_sources", lacking[source] if reads else nan, source=source)
        if texts or self._reported_s:
            sentences = [f"{printable(key[2])}: {text}" for key, text in texts.items()]
            self._health.set_check("telemetry_usable", not texts, some(sentences, _MAX_SENTENCES), required=False)
        due = [key for key in texts if now_s - self._reported_s.get(key, -inf) >= NOTICE_EVERY_S]
        for key in due:
            if key not in self._reported_s:
                log.warning("telemetry_unused", topic=key[0][0], kind=key[1], workload=key[2], detail=texts[key])
        self._reported_s = {key: now_s if key in due else self._reported_s[key] for key in texts}
        return [self._notice(key, texts[key]) for key in due]

    def _notice(self, key: _Key, text: str) -> OutRecord:
        (topic, partition), kind, workload, _ = key
        fields = {"reason": UNUSED, "detail": f"{kind}: {text}", "topic": topic, "partition": str(partition)}
        headers = tuple((name, value.encode()) for name, value in fields.items())
        return OutRecord(self._topic, workload.encode(), None, headers=headers)
