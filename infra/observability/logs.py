"""Logging of the shell: structured, escaped, bounded in volume; the pure core does not log.

Event names are snake_case and few; everything that varies is a field beside the event, so that the rate limit per event
name bounds the volume whatever the input.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from time import monotonic
from typing import Any, Literal

import orjson
import structlog

from infra.console.text import printable
from streams.meter import Meter

Output = Literal["auto", "json", "console"]
EventDict = MutableMapping[str, Any]

_LIBRARIES = ("faust", "mode", "aiokafka", "kafka", "asyncio", "aiohttp")
_LONGEST_VALUE = 2_000


def configure_logging(level: str = "info", *, output: Output = "auto", per_event_per_minute: int = 60) -> None:
    """Send structlog and the standard library's log to stderr.

    Args:
        level: debug, info, warning, error; libraries speak from `warning` on, or from `level` if that is higher.
        output: `auto` is JSON lines unless stderr is a terminal.
        per_event_per_minute: lines of one event name per minute; the next one tells how many were dropped.

    Raises:
        ValueError: an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}: use debug, info, warning or error")
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    as_json = output == "json" or (output == "auto" and not sys.stderr.isatty())
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True) if as_json else _short_time()
    limit = RateLimit(per_event_per_minute, 60.0)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        stamp,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        escape_values,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            limit,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    render: Any = (
        structlog.processors.JSONRenderer(_dumps)
        if as_json
        else structlog.dev.ConsoleRenderer(pad_event_to=0, colors=colors)
    )
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_library_event, structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    handler.addFilter(_LibraryLimit(limit))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in _LIBRARIES:
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.setLevel(max(number, logging.WARNING))


class RateLimit:
    """A structlog processor that lets `count` lines of an event name pass per `period_s` and counts the rest."""

    def __init__(
        self, count: int, period_s: float, clock: Callable[[], float] = monotonic, max_names: int = 1_000
    ) -> None:
        if count <= 0 or period_s <= 0:
            raise ValueError(f"count and period must be positive, got {count} and {period_s}")
        self._count = count
        self._period_s = period_s
        self._clock = clock
        self._max_names = max_names
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[float, int]] = {}

    def admit(self, name: str) -> int | None:
        """None = drop this line; else how many lines of this name were dropped before it."""
        now_s = self._clock()
        with self._lock:
            if name not in self._windows and len(self._windows) >= self._max_names:
                # Names that vary must not fill the memory; they share one allowance.
                name = ""
            since_s, lines = self._windows.get(name, (now_s, 0))
            dropped = 0
            if now_s - since_s >= self._period_s:
                dropped = max(0, lines - self._count)
                since_s, lines = now_s, 0
            self._windows[name] = (since_s, lines + 1)
        return dropped if lines < self._count else None

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        dropped = self.admit(str(event.get("event", "")))
        if dropped is None:
            raise structlog.DropEvent
        if dropped:
            event["suppressed"] = dropped
        return event


class _LibraryLimit(logging.Filter):
    """The rate limit for lines of the standard library's log; their name is their logger's."""

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):  # comes from structlog, where it has been counted
            return True
        dropped = self._limit.admit(record.name)
        if dropped:
            record.suppressed = dropped
        return dropped is not None


def escape_values(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Write control characters in every string as escapes and cut long ones; an exception keeps its line breaks."""
    for key, value in event.items():
        if key == "exception" and isinstance(value, str):
            event[key] = "\n".join(printable(line, _LONGEST_VALUE) for line in value.splitlines())
        elif key not in ("_record", "_from_structlog"):
            event[key] = _escaped(value)
    return event


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, _LONGEST_VALUE)
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"), _LONGEST_VALUE)
    if isinstance(value, Mapping):
        return {printable(str(k), 200): _escaped(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_escaped(v) for v in value]
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    return printable(str(value), _LONGEST_VALUE)


def _library_event(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """A library's message varies; its logger's name is the event, so that the rate limit holds."""
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["message"] = event["event"]
        event["event"] = record.name
    return event


def _short_time() -> Any:
    return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)


def _dumps(value: Any, **_options: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class _StderrHandler(logging.StreamHandler[Any]):
    """Looks `sys.stderr` up at each line, so that a live view may redirect it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _value: Any) -> None: ...


# Counts what the Kafka clients complain of: their warnings and errors, by what they were doing.


# The longest matching name of a client's logger says what it was doing.
OPERATION_OF = {
    "aiokafka": "connect",
    "aiokafka.consumer.fetcher": "fetch",
    "aiokafka.consumer.group_coordinator": "rebalance",
    "aiokafka.producer": "produce",
    "kafka": "admin",
}


class KafkaComplaints(logging.Handler):
    """A handler of the clients' loggers that counts instead of writing."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(logging.WARNING)
        self._meter = meter

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line."""
        self._meter.count("kafka_errors_total", operation=_operation(record))

    def listen(self) -> None:
        """Hear every Kafka client of this process. Call it after logging is configured, which drops handlers."""
        for name in {logger.split(".", 1)[0] for logger in OPERATION_OF}:
            logging.getLogger(name).addHandler(self)


def _operation(record: logging.LogRecord) -> str:
    name = record.name
    while name not in OPERATION_OF and "." in name:
        name = name.rpartition(".")[0]
    operation = OPERATION_OF.get(name, "other")
    # The coordinator's logger speaks of commits and of the group alike.
    return "commit" if operation == "rebalance" and "commit" in record.getMessage().lower() else operation
