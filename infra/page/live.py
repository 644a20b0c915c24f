"""What the page sends: the whole fleet, or only the rows that changed since a version, encoded once for all readers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, Final

import orjson

from infra.page.memory import FleetMemory
from infra.page.peers import Peer
from infra.page.views import fleet_row, workload_view

# Changes are gathered for so long before they are sent; a reader that hears nothing for three beats asks anew.
GATHER_S: Final = 0.5
BEAT_S: Final = 5.0
_SLICE = 50


@dataclass(slots=True)
class WorkerView:
    """What the page says of the worker that serves it.

    Attributes:
        state: of the reader of the topics: reading, live, waiting, ended.
        problem: why the worker is not ready; empty when it is.
        letters: dead letters that are kept.
    """

    fleet: str
    role: str
    instance: str
    version: str
    state: str
    note: str = ""
    ready: bool = False
    problem: str = ""
    not_shown: int = 0
    unreadable: int = 0
    letters: int = 0
    peers: list[Peer] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """As sent: peers without their process ids."""
        told = asdict(self)
        told["peers"] = [{"url": p.url, "role": p.role, "instance": p.instance} for p in self.peers]
        return told


class LiveFleet:
    """Deltas of a fleet memory by version. A version belongs to one life of the worker, named by `boot`."""

    def __init__(self, memory: FleetMemory, worker: Callable[[], WorkerView], *, boot: str | None = None) -> None:
        self._memory, self._worker = memory, worker
        self._rows: dict[str, tuple[int, bytes]] = {}
        self.boot = boot or os.urandom(6).hex()

    def resume_from(self, last_event_id: str) -> int | None:
        """Version after which a reader needs changes; None = it must start anew (no id, or of another life)."""
        boot, _, version = last_event_id.partition(":")
        if boot != self.boot or not version.isascii() or not version.isdigit() or len(version) > 18:
            return None
        known = int(version)
        return known if known <= self._memory.version else None

    async def message(self, since: int | None) -> tuple[int, bytes]:
        """Version and JSON of everything (since None), or of what changed; gives way to the loop as it encodes."""
        memory = self._memory
        version = memory.version
        rows = []
        for count, workload in enumerate(list(memory.changed_since(since or 0))):
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            encoded = self._row(workload)
            if encoded is not None:
                rows.append(orjson.Fragment(encoded))
        for workload in [w for w in self._rows if memory.get(w) is None]:
            del self._rows[workload]
        return version, orjson.dumps(
            {
                "boot": self.boot,
                "version": version,
                "reset": since is None,
                "origin_ts_ms": memory.newest_origin_ts_ms,
                "worker": self._worker().told(),
                "rows": rows,
                "gone": [] if since is None else memory.gone_since(since),
            }
        )

    async def events(self, last_event_id: str) -> AsyncIterator[bytes]:
        """Server-sent events for one reader, for ever: `fleet` when rows changed, `beat` when nothing did."""
        since = self.resume_from(last_event_id)
        yield b"retry: 1000\n\n"
        spoke_s = 0.0
        first = True
        while True:
            if first or self._memory.version != since:
                since, body = await self.message(since)
                yield b"id: %s:%d\nevent: fleet\ndata: %s\n\n" % (self.boot.encode(), since, body)
                spoke_s, first = monotonic(), False
            elif monotonic() - spoke_s >= BEAT_S:
                yield b"event: beat\ndata: %s\n\n" % orjson.dumps({"worker": self._worker().told()})
                spoke_s = monotonic()
            await asyncio.sleep(GATHER_S)

    def workload(self, workload: str) -> bytes | None:
        """JSON of one workload's view; None when it is not known."""
        history = self._memory.get(workload)
        if history is None:
            return None
        view = workload_view(workload, history)
        return orjson.dumps({"boot": self.boot, "version": self._memory.version_of(workload), **view})

    def by_key(self, key: str) -> str | None:
        """The workload of a short key."""
        return self._memory.by_key(key)

    def _row(self, workload: str) -> bytes | None:
        history, version = self._memory.get(workload), self._memory.version_of(workload)
        if history is None:
            return None
        known = self._rows.get(workload)
        if known is None or known[0] != version:
            known = self._rows[workload] = (version, orjson.dumps(fleet_row(workload, history)))
        return known[1]
