"""An actuator of one's own behind the same core as ours, which judges every change; here is how long one may take.

It lives on an event loop of its own, in its own thread: code that blocks by mistake holds up nobody else's leases.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from agents.records import Target
from infra.actuate.actuator import NotApplied, ReplicaChange
from infra.console.errors import HarmonyError
from infra.plugins.breaker import Breaker
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin
from streams.records.limits import MAX_REPLICAS

_CLOSE_S = 3.0
T = TypeVar("T")


class PluginActuator:
    """Implements `infra.actuate.actuator.Actuator` by a plug-in.

    A call that raises anything but `NotApplied`, or exceeds the limit, is `NotApplied`: of a change it is then not
    known whether it was made, and it counts against the rate caps.

    Raises:
        HarmonyError: the plug-in cannot be made, or lacks a method.
    """

    def __init__(self, plugin: Plugin, options: Mapping[str, Any], limits: PluginLimits) -> None:
        self._plugin, self._limit_s = plugin, limits.time_limit_s
        self._breaker = Breaker(limits.failures, limits.pause_calls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"actuator {plugin.name}", daemon=True)
        self._own = plugin.make(options)
        lacking = [m for m in ("observe", "apply") if not inspect.iscoroutinefunction(getattr(self._own, m, None))]
        done = getattr(self._own, "done", "applied")
        if lacking or done not in ("applied", "accepted"):
            wrong = f"no `async def {lacking[0]}`" if lacking else f"done is {done!r}, not applied or accepted"
            raise HarmonyError(f"The actuator {plugin.name!r} breaks the contract of docs/plugins.md: {wrong}.", 2)
        self._done: Literal["applied", "accepted"] = "applied" if done == "applied" else "accepted"
        self._thread.start()

    @property
    def name(self) -> str:
        return self._plugin.name

    @property
    def done(self) -> Literal["applied", "accepted"]:
        return self._done

    async def observe(self, workload: str, target: Target, expected: int | None, in_force: int | None) -> int | None:
        """As the protocol says; a count that is none is refused."""
        call = partial(self._own.observe, workload, target, expected, in_force)
        count = await self._ask(call, "observe", changes=False)
        if count is None and expected is None:
            return None
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_REPLICAS:
            raise NotApplied(f"{self.name} observed {count!r}, which is no count of replicas", sure=True)
        return count

    async def apply(self, change: ReplicaChange) -> str:
        """As the protocol says."""
        detail = await self._ask(partial(self._own.apply, change), "apply", changes=True)
        return detail if isinstance(detail, str) else ""

    async def close(self) -> None:
        """Let the plug-in close what it has open (`async def close`, optional), and end its loop."""
        closing = getattr(self._own, "close", None)
        if inspect.iscoroutinefunction(closing):
            task = asyncio.run_coroutine_threadsafe(closing(), self._loop)
            await asyncio.wait([asyncio.wrap_future(task)], timeout=_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, T]], what: str, *, changes: bool) -> T:
        if not self._breaker.allows():
            raise NotApplied(f"{self.name} is left alone after {what} or another call failed", sure=True)
        future = asyncio.run_coroutine_threadsafe(_contained(call), self._loop)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(future), self._limit_s)
        except NotApplied:
            self._breaker.succeeded()
            raise
        except TimeoutError as error:
            reason = f"no answer within {self._limit_s:g} s" if not str(error) else str(error)
            raise self._failed(what, reason, changes) from None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The plug-in has cancelled itself, not somebody us.
            raise self._failed(what, "it was cancelled", changes) from error
        except Exception as error:
            raise self._failed(what, f"{type(error).__name__}: {error}", changes) from error
        self._breaker.succeeded()
        return answer

    def _failed(self, what: str, reason: str, changes: bool) -> NotApplied:
        paused = "; it is left alone for a while" if self._breaker.failed() else ""
        return NotApplied(f"{self.name}.{what}: {reason}{paused}", sure=not changes)


async def _contained(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the plug-in answers; runs on its loop, which `sys.exit` would end, and with it every later call."""
    try:
        return await call()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__} {error}") from error
