"""`harmony.Publisher` writes telemetry to Kafka, `harmony.subscribe` reads what HARMONY publishes (docs/clients.md).

Both find the brokers, their security and the names of the topics as every command does: from the arguments, from
`harmony.yaml` and `HARMONY_*`, or from a running `harmony run`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import msgspec

from agents.records import Command, Decision, ForecastRecord
from infra.api.errors import InputError, python_errors
from infra.console.text import some
from streams.catalogue import DEFAULT_CATALOGUE, Source
from streams.log import OutRecord
from streams.records.facts import FleetFacts, HistogramState
from streams.records.schema import encode_fleet, encode_sample, record_key

if TYPE_CHECKING:
    from infra.settings.load import Settings

Topic = Literal["decisions", "commands", "forecasts"]
_MAX_LISTED: Final = 40
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "decisions": msgspec.json.Decoder(Decision).decode,
    "commands": msgspec.json.Decoder(Command).decode,
    "forecasts": msgspec.json.Decoder(ForecastRecord).decode,
}


def _names(source: Source, *, histograms: bool) -> tuple[str, ...]:
    """Names of the catalogue that samples of a source carry."""
    fields = [f for i in DEFAULT_CATALOGUE if i.source == source and (i.rule == "p95") == histograms for f in i.fields]
    return tuple(dict.fromkeys(fields))


def _fleet(config: Path | str | None, brokers: str | None) -> tuple[Settings, str]:
    from infra.kafka.discovery import find_fleet

    with python_errors(of_table=False):
        return find_fleet(None if config is None else Path(config), brokers)


class Publisher:
    """Publishes telemetry; a context manager. A call returns when the brokers have the record.

    Args:
        brokers: `host:port`, several separated by commas; default: `$HARMONY_BROKERS`, the settings', or those of a
            running `harmony run`.
        config: settings file with the security of the brokers and the prefix of the topics; default: as for commands.

    Raises:
        InputError: no brokers are named anywhere.
        HarmonyError: no broker answers.
    """

    def __init__(self, brokers: str | None = None, *, config: Path | str | None = None) -> None:
        from infra.collect.publisher import KafkaPublisher

        settings, where = _fleet(config, brokers)
        self._topics = settings.topics
        with python_errors(of_table=False):
            self._out = KafkaPublisher(where, settings.kafka_client_options())

    def requests(
        self,
        workload: str,
        *,
        source: str,
        at: datetime | int | None = None,
        histograms: Mapping[str, HistogramState] | None = None,
        **values: float | None,
    ) -> None:
        """Publish what a serving engine counts: `requests_started_total`, `num_requests_running`, ...

        Args:
            workload: its name, which is the record's key.
            source: who measured, such as the name of a pod; counters belong to a source.
            at: when, a datetime with a zone or milliseconds since 1970; default: now.
            histograms: cumulative ones by name: `ttft_s`, `tpot_s`.
            values: numbers by name (docs/formats); None where nothing was measured.

        Raises:
            InputError: an unknown name, a number that is not finite, a time without a zone.
            HarmonyError: the brokers do not take the record.
        """
        self._sample("requests", self._topics.telemetry_requests, workload, source, at, values, histograms)

    def gpu(self, workload: str, *, source: str, at: datetime | int | None = None, **values: float | None) -> None:
        """Publish what a GPU shows: `sm_active_ratio`, `memory_used_bytes`, `power_w`, ...; otherwise as `requests`."""
        self._sample("gpu", self._topics.telemetry_gpu, workload, source, at, values, None)

    def fleet(
        self,
        workload: str,
        *,
        ready: int,
        pending: int = 0,
        draining: int = 0,
        desired: int | None = None,
        source: str = "python",
        at: datetime | int | None = None,
    ) -> None:
        """Publish the replicas of a workload: serving, on their way, and ending; otherwise as `requests`."""
        counts = {"ready": ready, "pending": pending, "draining": draining, "desired": desired or 0}
        wrong = next((name for name, count in counts.items() if not isinstance(count, int) or count < 0), None)
        if wrong is not None:
            raise InputError(f"{wrong}: {counts[wrong]!r} must be a whole number of 0 or more.")
        facts = FleetFacts(_ts_ms(at), ready, pending=pending, draining=draining, desired=desired)
        self._send(self._topics.telemetry_requests, workload, encode_fleet(workload, source, facts))

    def close(self) -> None:
        """Let go of the connection."""
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample(
        self,
        kind: Source,
        topic: str,
        workload: str,
        source: str,
        at: datetime | int | None,
        values: Mapping[str, float | None],
        histograms: Mapping[str, HistogramState] | None,
    ) -> None:
        _refuse_unknown(values, _names(kind, histograms=False))
        _refuse_unknown(histograms or {}, _names(kind, histograms=True))
        if not values and not histograms:
            raise InputError(f"a sample of kind {kind} needs at least one value.")
        try:
            record = encode_sample(kind, workload, source, _ts_ms(at), values, histograms)
        except (TypeError, ValueError) as error:
            raise InputError(f"values: {error}.") from None
        self._send(topic, workload, record)

    def _send(self, topic: str, workload: str, value: bytes) -> None:
        if not workload or any(c.isspace() for c in workload):
            raise InputError(f"workload: {workload!r} must be a name without spaces, such as prod/llm/chat-70b.")
        self._out.publish([OutRecord(topic, record_key(workload), value)])


def _refuse_unknown(given: Mapping[str, object], known: tuple[str, ...]) -> None:
    """A worker ignores names that it does not use; here they are mistakes."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            instead = f"did you mean {close[0]}?" if close else f"it is none of {some(list(known), _MAX_LISTED)}."
            raise InputError(f"unknown name {name!r}: {instead}")


def _ts_ms(at: datetime | int | None) -> int:
    if at is None:
        return time_ns() // 1_000_000
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InputError(f"at: {at.isoformat()} has no zone; use datetime.now(UTC), or milliseconds since 1970.")
        return round(at.timestamp() * 1000)
    if not isinstance(at, int):
        raise InputError(f"at: {at!r} must be a datetime with a zone, or milliseconds since 1970.")
    return at


@overload
def subscribe(
    topic: Literal["decisions"], brokers: str | None = None, *, workload: str | None = None,
    from_beginning: bool = False, idle: float | None = None, config: Path | str | None = None,
) -> Iterator[Decision]: ...  # fmt: skip
@overload
def subscribe(
    topic: Literal["commands"], brokers: str | None = None, *, workload: str | None = None,
    from_beginning: bool = False, idle: float | None = None, config: Path | str | None = None,
) -> Iterator[Command]: ...  # fmt: skip
@overload
def subscribe(
    topic: Literal["forecasts"], brokers: str | None = None, *, workload: str | None = None,
    from_beginning: bool = False, idle: float | None = None, config: Path | str | None = None,
) -> Iterator[ForecastRecord]: ...  # fmt: skip
def subscribe(
    topic: Topic,
    brokers: str | None = None,
    *,
    workload: str | None = None,
    from_beginning: bool = False,
    idle: float | None = None,
    config: Path | str | None = None,
) -> Iterator[Decision] | Iterator[Command] | Iterator[ForecastRecord]:
    """Follow a topic of HARMONY: an iterator of its records, without consumer group or commit.

    Args:
        topic: "decisions", "commands" or "forecasts".
        brokers, config: as `Publisher` has them.
        workload: only records of this one.
        from_beginning: first the records that the topic still has, oldest first within a workload; default: only those
            that come from now on.
        idle: end after so many seconds without a record; default: never end.

    Returns:
        `Decision`, `Command` or `ForecastRecord` (docs/formats), in the order of the log. Records of another version
        are passed over. A command is a lease: check `valid_until_ts_ms` before you obey it.

    Raises:
        InputError: an unknown topic, or no brokers are named anywhere.
        HarmonyError: no broker answers, or the topic does not exist.
    """
    if topic not in _DECODERS:
        raise InputError(f"topic: {topic!r} is none of {', '.join(_DECODERS)}.")
    if idle is not None and not idle > 0:
        raise InputError(f"idle: {idle!r} must be seconds above 0.")
    from infra.kafka.tail import TopicTail

    settings, where = _fleet(config, brokers)
    names = {
        "decisions": settings.topics.decisions,
        "commands": settings.topics.commands,
        "forecasts": settings.topics.forecasts,
    }
    with python_errors(of_table=False):
        tail = TopicTail(where, names[topic], security=settings.kafka_client_options())
        # The position is fixed now: what is published between this call and the first `next` is not lost.
        records = tail.follow(from_beginning=from_beginning, idle_s=idle)
    return _decoded(tail, records, _DECODERS[topic], workload)


def _decoded(tail: Any, records: Iterator[Any], decode: Callable[[bytes], Any], workload: str | None) -> Iterator[Any]:
    with tail, python_errors(of_table=False):
        for record in records:
            try:
                value = decode(record.value or b"")
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            if workload is None or value.workload == workload:
                yield value
