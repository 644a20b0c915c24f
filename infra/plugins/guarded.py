"""Calls into a plug-in: in a thread of its own, within a time limit, behind a circuit breaker.

A thread cannot be ended from outside. One that exceeds its limit is left alone, and the plug-in is not called again
before it has come back, so that at most one call per plug-in is ever under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

import structlog

from infra.plugins.breaker import Breaker
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin
from streams.meter import Meter, NullMeter

T = TypeVar("T")

log = structlog.get_logger()


class PluginFailed(Exception):
    """The plug-in gave no answer that can be used.

    Attributes:
        outcome: failed, timeout or skipped.
    """

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


class _Job:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.answer: Future[Any] = Future()


class Guarded:
    """All calls into one plug-in. Not for several callers at once.

    Args:
        meter: counts `plugin_calls_total`.
        prepare: run once in the plug-in's thread before the first call.
        blameless: what the plug-in may raise by contract: it reaches the caller, and the breaker counts it as success.
        waits: a call waits for the last one where that still runs, within the time limit, and fails where it does not
            end; else such a call is skipped at once.
    """

    def __init__(
        self,
        plugin: Plugin,
        limits: PluginLimits,
        meter: Meter | None = None,
        *,
        prepare: Callable[[], object] | None = None,
        blameless: tuple[type[Exception], ...] = (),
        waits: bool = False,
    ) -> None:
        self.plugin = plugin
        self.breaker = Breaker(limits.failures, limits.pause_calls)
        self._limit_s = limits.time_limit_s
        self._meter = meter or NullMeter()
        self._blameless = blameless
        self._waits = waits
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._late: Future[Any] | None = None
        threading.Thread(
            target=_work, args=(self._jobs, prepare), name=f"{plugin.kind} {plugin.name}", daemon=True
        ).start()

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns.

        Raises:
            PluginFailed: it raised, took too long, or was not called: the breaker is open, or the last call still runs.
            Exception: one of `blameless`.
        """
        if self._late is not None and not self._late.done():
            if not self._waits:
                raise self._count_call("skipped", "its last call still runs")
            if not wait_for([self._late], self._limit_s).done:
                raise self._failed("timeout", "its last call still runs")
        self._late = None
        if not self.breaker.allows():
            raise self._count_call("skipped", "the circuit breaker is open")
        job = _Job(work)
        self._jobs.put(job)
        try:
            answer: T = job.answer.result(self._limit_s)
        except FutureTimeout as error:
            if job.answer.done():  # the plug-in raised a TimeoutError of its own
                raise self._failed("failed", f"{type(error).__name__}: {error}") from error
            self._late = job.answer
            raise self._failed("timeout", f"no answer within {self._limit_s:g} s") from None
        except self._blameless:
            self._succeeded()
            raise
        except Exception as error:
            raise self._failed("failed", f"{type(error).__name__}: {error}") from error
        self._succeeded()
        return answer

    def close(self) -> None:
        """End its thread after the call that runs. Idempotent."""
        self._jobs.put(None)

    def _succeeded(self) -> None:
        self.breaker.succeeded()
        self._meter.count("plugin_calls_total", kind=self.plugin.kind, outcome="ok")

    def _failed(self, outcome: str, detail: str) -> PluginFailed:
        opened = self.breaker.failed()
        fields = {"kind": self.plugin.kind, "name": self.plugin.name, "reason": detail}
        log.warning("plugin_failed", **fields)
        if opened:
            log.error("plugin_paused", **fields)
        return self._count_call(outcome, detail)

    def _count_call(self, outcome: str, detail: str) -> PluginFailed:
        self._meter.count("plugin_calls_total", kind=self.plugin.kind, outcome=outcome)
        return PluginFailed(outcome, f"{self.plugin.kind} {self.plugin.name}: {detail}")


def _work(jobs: queue.SimpleQueue[_Job | None], prepare: Callable[[], object] | None) -> None:
    if prepare is not None:
        prepare()
    while (job := jobs.get()) is not None:
        try:
            job.answer.set_result(job.work())
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who asked
            job.answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - a plug-in that calls sys.exit must not end us
            job.answer.set_exception(RuntimeError(f"{type(error).__name__} {error}"))
