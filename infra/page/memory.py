"""The page's memory: every workload that the output topics speak of, and which of them changed since when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from agents.decide.records import decode_decision
from agents.planning.codec import misses_of_plan
from agents.records import Decision
from infra.page.history import LoadForecast, WorkloadHistory
from streams.log import UNREADABLE, ContractBroken
from streams.topics import Topics

# About 60 KB each; what goes beyond is counted, not kept.
MAX_WORKLOADS: Final = 2_000
# A workload that decided nothing for so many steps while others did leaves the page.
GONE_AFTER_STEPS: Final = 240
RETIRED_AFTER_STEPS: Final = 12
_FORECASTS = msgspec.json.Decoder(LoadForecast)


class FleetMemory:
    """Folds records of the topics decisions, forecasts and plans; bounded in workloads and per workload.

    Args:
        topics: names of the topics.
        step_ms: slot length.
        max_workloads: how many are kept.
        hold_ms: as of `WorkloadHistory`.

    Attributes:
        version: grows with every change that can be seen.
        unreadable: records that were not what their topic promises.
        refused: workloads that found no room, with the origin of each one's newest decision; who retires, is silent for
            long or finds room after all is none of them.
    """

    def __init__(
        self, topics: Topics, step_ms: int, max_workloads: int = MAX_WORKLOADS, hold_ms: int = 300_000
    ) -> None:
        self._topics, self._step_ms, self._max, self._hold_ms = topics, step_ms, max_workloads, hold_ms
        self._histories: dict[str, WorkloadHistory] = {}
        self._versions: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self.version = 0
        self.newest_origin_ts_ms: int | None = None
        self._swept_ts_ms: int | None = None
        self.unreadable = 0
        self.refused: dict[str, int] = {}

    def fold(self, topic: str, value: bytes | None) -> None:
        """Take in one record; what cannot be read is counted and passed over."""
        if value is None:
            return
        try:
            if topic == self._topics.decisions:
                self._fold_decision(value)
            elif topic == self._topics.forecasts:
                self._fold_forecast(value)
            elif topic == self._topics.plans:
                self._fold_plan(value)
        except (*UNREADABLE, ContractBroken, ValueError, OverflowError):
            self.unreadable += 1

    def get(self, workload: str) -> WorkloadHistory | None:
        """What is kept of a workload that has been decided."""
        history = self._histories.get(workload)
        return history if history is not None and history.newest is not None else None

    def version_of(self, workload: str) -> int:
        return self._versions.get(workload, 0)

    def by_key(self, key: str) -> str | None:
        """The workload of a short key."""
        return self._keys.get(key)

    def changed_since(self, version: int) -> Iterator[str]:
        """Workloads that changed after `version`, sorted."""
        return (w for w in sorted(self._versions) if self._versions[w] > version and self.get(w) is not None)

    def gone_since(self, version: int) -> list[str]:
        """Keys of workloads that left after `version`."""
        return [key for key, at in self._gone.items() if at > version]

    def __len__(self) -> int:
        return sum(1 for h in self._histories.values() if h.newest is not None)

    def sweep(self) -> None:
        """Let go of workloads that were retired or have been silent for long, in event time."""
        newest = self.newest_origin_ts_ms
        if newest is None or newest == self._swept_ts_ms:
            return
        self._swept_ts_ms = newest
        for workload, history in list(self._histories.items()):
            decision = history.newest
            if decision is None:
                continue
            allowed = RETIRED_AFTER_STEPS if decision.action == "retired" else GONE_AFTER_STEPS
            if newest - decision.origin_ts_ms > allowed * self._step_ms:
                self._drop(workload)
        heard_since = newest - GONE_AFTER_STEPS * self._step_ms
        self.refused = {workload: at for workload, at in self.refused.items() if at >= heard_since}

    def _drop(self, workload: str) -> None:
        self.version += 1
        del self._histories[workload]
        self._versions.pop(workload, None)
        key = short_key(workload)
        self._keys.pop(key, None)
        self._gone[key] = self.version
        while len(self._gone) > self._max:
            del self._gone[next(iter(self._gone))]

    def _fold_decision(self, value: bytes) -> None:
        decision = decode_decision(value)
        history = self._history(decision.workload)
        if history is None:
            self._refuse(decision)
        elif not history.decide(decision):
            return
        # Also where there is no room for it: were all that are shown to fall silent, nothing else would make room.
        self.newest_origin_ts_ms = max(decision.origin_ts_ms, self.newest_origin_ts_ms or 0)
        if history is not None:
            self._touch(decision.workload)

    def _refuse(self, decision: Decision) -> None:
        if decision.action == "retired":
            self.refused.pop(decision.workload, None)
        elif decision.workload in self.refused or len(self.refused) < self._max:
            before = self.refused.get(decision.workload, 0)
            self.refused[decision.workload] = max(decision.origin_ts_ms, before)

    def _fold_forecast(self, value: bytes) -> None:
        forecast = _FORECASTS.decode(value)
        history = self._history(forecast.workload)
        if history is not None and history.forecast(forecast):
            self._touch(forecast.workload)

    def _fold_plan(self, value: bytes) -> None:
        plan = misses_of_plan(value)
        for told in plan.workloads:
            # Plans precede the decisions, whose arrival makes the change seen.
            history = self._history(told.workload)
            if history is not None and told.slo_miss_ratio is not None:
                history.observe_misses(plan.origin_ts_ms, told.slo_miss_ratio)

    def _history(self, workload: str) -> WorkloadHistory | None:
        history = self._histories.get(workload)
        if history is None:
            if len(self._histories) >= self._max:
                return None
            self.refused.pop(workload, None)
            history = self._histories[workload] = WorkloadHistory(self._step_ms, self._hold_ms)
            key = short_key(workload)
            self._keys[key] = workload
            self._gone.pop(key, None)
        return history

    def _touch(self, workload: str) -> None:
        self.version += 1
        self._versions[workload] = self.version


def short_key(workload: str) -> str:
    """A name of fixed length for a workload id of any content and length, for addresses and for comparing."""
    return hashlib.blake2b(workload.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
