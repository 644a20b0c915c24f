"""What the page sends: the whole fleet, or only the rows that changed since a version, encoded once for all readers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import orjson

from infra.console.host import birth_mark, is_alive
from infra.page.memory import FleetMemory
from infra.page.views import fleet_row, workload_view

# Which other workers of this host serve a page: one small file each in the state directory.


_FOLDER = "pages"
_MOST = 64


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker that serves a page.

    Attributes:
        url: root address.
        topics: brokers and prefix, so that only workers of the same log are linked.
        born: birth mark of the process, so that a reused pid is not taken for it.
    """

    url: str
    role: str
    instance: str
    topics: str
    pid: int
    born: str


@contextmanager
def announced(state_dir: Path, url: str, role: str, instance: str, topics: str) -> Iterator[Peer]:
    """Tell the other workers of this host while the block runs; where nothing can be written, nobody is told."""
    peer = Peer(url, role, instance, topics, os.getpid(), birth_mark(os.getpid()))
    path = state_dir / _FOLDER / f"{peer.pid}.json"
    unfinished = path.with_suffix(".new")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(asdict(peer)), encoding="utf-8")
        unfinished.replace(path)
    try:
        yield peer
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def peers_of(state_dir: Path, own: Peer) -> list[Peer]:
    """The other live workers of the same topics, sorted by instance."""
    peers = []
    with suppress(OSError):
        for path in sorted((state_dir / _FOLDER).glob("*.json"))[:_MOST]:
            peer = _read(path)
            if peer is None or not (is_alive(peer.pid) and birth_mark(peer.pid) == peer.born):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            elif peer.pid != own.pid and peer.topics == own.topics and peer.url.startswith(("http://", "https://")):
                peers.append(peer)
    return sorted(peers, key=lambda p: (p.instance, p.pid))


def _read(path: Path) -> Peer | None:
    try:
        peer = Peer(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    texts = (peer.url, peer.role, peer.instance, peer.topics, peer.born)
    return peer if all(isinstance(text, str) for text in texts) and type(peer.pid) is int else None


# The demo's policies on the same requests: one small file in the state directory while `harmony run` plays.


_POLICIES_FILE: Final = "policies"


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """What one policy has cost and kept so far.

    Attributes:
        attainment: share of requests within the SLO.
        cost: of its GPU-hours, in the currency of `price_per_gpu_hour`.
    """

    policy: str
    gpu_hours: float | None = None
    attainment: float | None = None
    cost: float | None = None


class PolicyBoard:
    """Tells the pages of this host how the demo's policies compare; a context manager, which takes the file away."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FOLDER / _POLICIES_FILE
        self._writer = {"pid": os.getpid(), "born": birth_mark(os.getpid())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def write(self, policies: Sequence[PolicyLine]) -> None:
        """Replace what is told; where nothing can be written, nothing is."""
        unfinished = self._path.with_suffix(".new")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            body = {**self._writer, "policies": [asdict(policy) for policy in policies]}
            unfinished.write_text(json.dumps(body), encoding="utf-8")
            unfinished.replace(self._path)


def policies_of(state_dir: Path) -> list[PolicyLine]:
    """The policies of the demo that plays on this host; none where none does."""
    try:
        body = json.loads((state_dir / _FOLDER / _POLICIES_FILE).read_text(encoding="utf-8"))
        if not (is_alive(body["pid"]) and birth_mark(body["pid"]) == body["born"]):
            return []
        policies = [PolicyLine(**policy) for policy in body["policies"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    numbers = (n for p in policies for n in (p.gpu_hours, p.attainment, p.cost))
    fine = all(n is None or isinstance(n, int | float) for n in numbers)
    return policies if fine and all(isinstance(p.policy, str) for p in policies) else []


# Changes are gathered for so long before they are sent; a reader that hears nothing for three beats asks anew.
GATHER_S: Final = 0.5
BEAT_S: Final = 5.0
_SLICE = 50


@dataclass(slots=True)
class WorkerStatus:
    """What the page says of the worker that serves it.

    Attributes:
        state: of the reader of the topics: reading, live, waiting, ended.
        problem: why the worker is not ready; empty when it is.
        letters: dead letters that are kept.
        policies: of the demo that plays on this host.
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
    policies: list[PolicyLine] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As sent: peers without their process ids."""
        fields = asdict(self)
        fields["peers"] = [{"url": p.url, "role": p.role, "instance": p.instance} for p in self.peers]
        return fields


class LiveFleet:
    """Deltas of a fleet memory by version. A version belongs to one life of the worker, named by `boot`."""

    def __init__(self, memory: FleetMemory, worker: Callable[[], WorkerStatus], *, boot: str | None = None) -> None:
        self._memory, self._worker = memory, worker
        self._rows: dict[str, tuple[int, bytes]] = {}
        self.boot = boot or os.urandom(6).hex()

    def resume_from(self, last_event_id: str) -> int | None:
        """Version after which a reader needs changes; None = it must start anew (no id, or of another life)."""
        boot, _, version = last_event_id.partition(":")
        if boot != self.boot or not version.isascii() or not version.isdigit() or len(version) > 18:
            return None
        last_version = int(version)
        return last_version if last_version <= self._memory.version else None

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
                "worker": self._worker().to_dict(),
                "rows": rows,
                "gone": [] if since is None else memory.removals_since(since),
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
                yield b"event: beat\ndata: %s\n\n" % orjson.dumps({"worker": self._worker().to_dict()})
                spoke_s = monotonic()
            await asyncio.sleep(GATHER_S)

    def workload(self, workload: str) -> bytes | None:
        """JSON of one workload's view; None when it is not known."""
        history = self._memory.get(workload)
        if history is None:
            return None
        view = workload_view(workload, history, self._memory.note_of(workload))
        return orjson.dumps({"boot": self.boot, "version": self._memory.version_of(workload), **view})

    def by_key(self, key: str) -> str | None:
        """The workload of a short key."""
        return self._memory.by_key(key)

    def _row(self, workload: str) -> bytes | None:
        history, version = self._memory.get(workload), self._memory.version_of(workload)
        if history is None:
            return None
        row = self._rows.get(workload)
        if row is None or row[0] != version:
            row = self._rows[workload] = (
                version,
                orjson.dumps(fleet_row(workload, history, self._memory.note_of(workload))),
            )
        return row[1]
