"""The page as a worker serves it, over records that the test hands in: no Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from infra.observability.health import Health
from infra.observability.metrics import PrometheusMeter
from infra.observability.probes import ProbeServer
from infra.page.live import LiveFleet, Peer, WorkerStatus
from infra.page.memory import FleetMemory
from infra.page.server import PageRoutes, health_view, settings_view
from infra.page.tail import LetterMemory
from infra.settings.load import Settings
from tests.infra.page import fleet_records


class PageServer:
    """A page on a loopback port; `fold` from any thread."""

    def __init__(self, *, port: int = 0, token: str | None = None, boot: str | None = None, role: str = "all") -> None:
        self.memory = FleetMemory(fleet_records.TOPICS, fleet_records.STEP_MS)
        self.view = WorkerStatus("test", role, "worker-0", "0.1.0", "live", ready=True)
        self.live = LiveFleet(self.memory, lambda: self.view, boot=boot)
        health = Health(monotonic())
        self.letters = LetterMemory()
        meter = PrometheusMeter()
        meter.gauge("lag_records", 3, stage="ingest")
        lists = {
            "dead-letters": self.letters.to_dict,
            "health": lambda: health_view(health.snapshot(monotonic()), meter.registry),
            "settings": lambda: settings_view(Settings()),
        }
        self.routes = PageRoutes(self.live, token, lists=lists)
        self.server = ProbeServer(health, PrometheusMeter(), port=port, token=token, parts=(self.routes.add_to,))
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return self.server.url

    def fold(self, *records: tuple[str, bytes]) -> None:
        """Take in records on the server's own loop, and wait for it."""

        async def take() -> None:
            for topic, value in records:
                self.memory.fold(topic, value)
            self.memory.sweep()

        asyncio.run_coroutine_threadsafe(take(), self._loop).result(60)

    def meet(self, *peers: Peer) -> None:
        self.view.peers = list(peers)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.start())
        self._ready.set()
        self._loop.run_forever()


@contextmanager
def page_server(**options: object) -> Iterator[PageServer]:
    server = PageServer(**options)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()
