"""A worker that falls ill on command: `sick_worker.py ILLNESS MARK worker ...` is well until the file MARK exists.

Each illness is what a real fault looks like from inside: a call that never comes back, a client that is dead.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOREVER_S = 3_600.0


def _loop(ill: Callable[[], bool]) -> None:
    from streams.runtime.app import StageHost

    healthy = StageHost.accept

    async def accept(self: Any, batch: Any) -> None:
        if ill():
            time.sleep(FOREVER_S)  # noqa: ASYNC251 - a blocked loop is the point
        await healthy(self, batch)

    StageHost.accept = accept  # type: ignore[method-assign]


def _commit(ill: Callable[[], bool]) -> None:
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread as Thread

    healthy = Thread._commit

    async def commit(self: Any, offsets: Any) -> Any:
        # It says no: one that hangs would keep the thread's two workers from all else, and be seen sooner.
        return False if ill() else await healthy(self, offsets)

    Thread._commit = commit


def _fetch(ill: Callable[[], bool]) -> None:
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread as Thread

    healthy = Thread._fetch_records

    async def fetch(self: Any, *arguments: Any, **options: Any) -> Any:
        if ill():
            await asyncio.sleep(1)
            return {}
        return await healthy(self, *arguments, **options)

    Thread._fetch_records = fetch


def _restore(ill: Callable[[], bool]) -> None:
    from streams.runtime.restore import LogReader

    healthy = LogReader.bounds

    async def bounds(self: Any, topic: str, partition: int) -> tuple[int, int]:
        if ill():
            await asyncio.sleep(FOREVER_S)
        return await healthy(self, topic, partition)

    LogReader.bounds = bounds  # type: ignore[method-assign]


def _producer(ill: Callable[[], bool]) -> None:
    from aiokafka.producer.sender import Sender

    healthy = Sender._send_produce_req

    async def send(self: Any, *arguments: Any) -> Any:
        if ill():
            raise RuntimeError("the producer is ill")
        return await healthy(self, *arguments)

    Sender._send_produce_req = send


def _forecast(ill: Callable[[], bool]) -> None:
    from model.inference import InferenceWorker

    healthy = InferenceWorker._run

    def run(self: Any, job: Any) -> None:
        if ill():
            time.sleep(FOREVER_S)
        healthy(self, job)

    InferenceWorker._run = run  # type: ignore[method-assign]


def _crash(ill: Callable[[], bool]) -> None:
    from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread as Thread

    healthy = Thread._fetch_records

    async def fetch(self: Any, *arguments: Any, **options: Any) -> Any:
        if ill():
            raise RuntimeError("the consumer is ill")
        return await healthy(self, *arguments, **options)

    Thread._fetch_records = fetch


def _clock(jump_s: float) -> Callable[[Callable[[], bool]], None]:
    """The wall clock stands that far off; the one that only counts goes on as before."""

    def illness(ill: Callable[[], bool]) -> None:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + jump_s * ill()
        time.time_ns = lambda: now_ns() + int(1e9 * jump_s) * ill()

    return illness


ILLNESSES = {
    "loop": _loop,
    "commit": _commit,
    "fetch": _fetch,
    "restore": _restore,
    "producer": _producer,
    "forecast": _forecast,
    "crash": _crash,
    "clock-ahead": _clock(3_600.0),
    "clock-behind": _clock(-3_600.0),
}


def main() -> None:
    illness, mark = sys.argv[1], Path(sys.argv[2])
    ILLNESSES[illness](mark.exists)
    sys.argv = ["harmony", *sys.argv[3:]]
    from infra.cli.app import main as harmony

    harmony()


if __name__ == "__main__":
    main()
