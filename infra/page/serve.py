"""Puts the page together for a worker: memory, reader of the topics, routes, and word to the other workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from time import monotonic
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from infra.observability.health import Health
from infra.own_version import own_version
from infra.page.health_view import health_view
from infra.page.letters import LetterMemory
from infra.page.live import LiveFleet, WorkerView
from infra.page.memory import FleetMemory
from infra.page.peers import Peer, announced, peers_of
from infra.page.server import PageRoutes
from infra.page.settings_view import settings_view
from infra.page.tail import PageTail
from infra.settings.load import Settings

_PEERS_EVERY_S = 5.0

log = structlog.get_logger()


class Page:
    """The page of one worker. `add_to` before the server starts, `reading` around its life.

    Args:
        settings: fleet, topics, step, state directory.
        health: what the page says of this worker.
        role: stages of this worker.
        instance: its name.
        client_options: bootstrap_servers and security of an aiokafka client.
        token: as of the probes.
        registry: of this worker's metrics.
        busy: as of `PageTail`.
    """

    def __init__(
        self,
        settings: Settings,
        health: Health,
        *,
        role: str,
        instance: str,
        client_options: Mapping[str, Any],
        token: str | None = None,
        registry: CollectorRegistry | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._health = settings, health
        self._role, self._instance = role, instance
        self._topics = f"{client_options['bootstrap_servers']} {settings.topics.prefix}"
        self._own: Peer | None = None
        self._peers: list[Peer] = []
        self._peers_read_s = float("-inf")
        hold_ms = round(settings.policy.guards.stabilization_down_s * 1000)
        self._memory = FleetMemory(settings.topics, settings.stream.step_ms, hold_ms=hold_ms)
        self._letters = LetterMemory()
        self._tail = PageTail(self._memory, settings.topics, client_options, self._letters, busy)
        figures = registry or CollectorRegistry()
        self._routes = PageRoutes(
            LiveFleet(self._memory, self.worker),
            token,
            certificates=settings.worker.web_client_cafile is not None,
            lists={
                "dead-letters": self._letters.told,
                "health": lambda: health_view(self._health.snapshot(monotonic()), figures),
                "settings": cache(partial(settings_view, settings)),
            },
        )

    def add_to(self, app: web.Application) -> None:
        """Register the page's routes."""
        self._routes.add_to(app)

    @asynccontextmanager
    async def reading(self, url: str) -> AsyncIterator[None]:
        """Follow the topics, and be known to the other workers of this host under `url`, while the block runs."""
        with announced(self._settings.state_dir, url, self._role, self._instance, self._topics) as self._own:
            task = asyncio.create_task(self._tail.run())
            task.add_done_callback(self._ended)
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Showing must never harm deciding: the worker goes on, and the page says that it does not.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tail.state, self._tail.note = "ended", f"{type(error).__name__}: {error}"
            log.error("page_reader_ended", reason=self._tail.note)

    def worker(self) -> WorkerView:
        """This worker now."""
        now_s = monotonic()
        if self._own is not None and now_s - self._peers_read_s > _PEERS_EVERY_S:
            self._peers, self._peers_read_s = peers_of(self._settings.state_dir, self._own), now_s
        health = self._health.snapshot(now_s)
        problems = [health.live_reason] if not health.live else []
        problems += [f"{c.name}: {c.detail or 'not ok'}" for c in health.checks if not c.ok]
        return WorkerView(
            fleet=self._settings.fleet,
            role=self._role,
            instance=self._instance,
            version=own_version(),
            state=self._tail.state,
            note=self._tail.note,
            ready=health.ready,
            problem="; ".join(problems),
            not_shown=len(self._memory.refused),
            unreadable=self._memory.unreadable,
            letters=len(self._letters),
            peers=self._peers,
        )
