"""Which other workers of this host serve a page: one small file each in the state directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.process_alive import birth_mark, is_alive

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
    found = []
    with suppress(OSError):
        for path in sorted((state_dir / _FOLDER).glob("*.json"))[:_MOST]:
            peer = _read(path)
            if peer is None or not (is_alive(peer.pid) and birth_mark(peer.pid) == peer.born):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            elif peer.pid != own.pid and peer.topics == own.topics and peer.url.startswith(("http://", "https://")):
                found.append(peer)
    return sorted(found, key=lambda p: (p.instance, p.pid))


def _read(path: Path) -> Peer | None:
    try:
        peer = Peer(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    texts = (peer.url, peer.role, peer.instance, peer.topics, peer.born)
    return peer if all(isinstance(text, str) for text in texts) and type(peer.pid) is int else None
