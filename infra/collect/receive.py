"""`harmony collect remote-write` and `harmony map`: telemetry that others push."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from infra.collect.formats.raw_record import FORMATS, RawPoints, read_raw
from infra.collect.loop import publisher_of, reader_of
from infra.collect.mapper import RawFold, RawMapper
from infra.collect.mapping.readings import Assembler, Reader
from infra.collect.options import Common, Dry
from infra.collect.publisher import KafkaPublisher
from infra.collect.sources.remote_write import RemoteWriteServer, check_installed
from infra.console.errors import HarmonyError
from infra.console.options import print_json, say
from infra.console.text import parse_duration_s
from infra.kafka.admin import TopicAdmin
from infra.settings.load import Settings
from streams.topics import TopicSpec


def receive(
    common: Dry,
    listen: str,
    hold: str,
    profiles: Sequence[str],
    mappings: Sequence[Path],
    workload: str | None,
    token_file: Path | None,
) -> None:
    """Receive remote writes until told to stop.

    Raises:
        HarmonyError: a flag, a package or Kafka is not as it must be; or an address open to others without a token.
    """
    check_installed()
    host, port = _address(listen)
    token = _token(token_file)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise HarmonyError(
            f"--listen {listen} is open to others: say --token-file FILE, and give Prometheus the same token "
            "(remote_write: authorization: credentials).",
            2,
        )
    settings, brokers = common.settings()
    reader = reader_of(settings, profiles, mappings, workload)
    with publisher_of(common, settings, brokers) as publisher:
        server = RemoteWriteServer(
            Assembler(reader, _seconds(hold)), settings.topics, publisher, host, port, say, token
        )
        asyncio.run(_until_stopped(server))
    finished = {"requests": server.requests, "refused_requests": server.refused, "records": server.records}
    _report(finished | {"unpublished": server.lost}, reader, common)


async def _until_stopped(server: RemoteWriteServer | RawMapper) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.run(stop)


def map_topic(
    common: Common, form: str, hold: str, profiles: Sequence[str], mappings: Sequence[Path], workload: str | None
) -> None:
    """Map telemetry.raw until told to stop.

    Raises:
        HarmonyError: a flag or Kafka is not as it must be.
    """
    settings, brokers = common.settings()
    decode = _decoder(form, settings)
    reader = reader_of(settings, profiles, mappings, workload)
    security = settings.kafka_client_options()
    with KafkaPublisher(brokers, security) as publisher:
        _check_topic(brokers, settings.topics.raw_spec(), security)
        fold = RawFold(Assembler(reader, _seconds(hold)), settings.topics, decode)
        mapper = RawMapper(fold, settings.topics, brokers, publisher, security)
        say(f"Mapping {settings.topics.telemetry_raw} at {brokers}; stop with Ctrl-C.")
        asyncio.run(_until_stopped(mapper))
    finished = {"records_read": fold.read, "dead_letters": dict(fold.refused), "passed_over": dict(fold.passed_over)}
    _report(finished | {"records": mapper.published}, reader, common)


def _decoder(form: str, settings: Settings) -> Callable[[bytes, int], RawPoints]:
    kind, _, name = form.partition(":")
    if kind == "plugin" and name:
        from infra.collect.plugin import PluginDecoder
        from infra.settings.limits import PluginLimits
        from infra.settings.plugins import find

        chosen = settings.advanced.plugins
        limits = PluginLimits(chosen.time_limit_s, chosen.failures, chosen.pause_calls)
        return PluginDecoder(find("decoder", name), chosen.options.get("decoder", {}), limits).read
    if form not in FORMATS:
        raise HarmonyError(f"--format {form!r} is none of {', '.join(FORMATS)}, plugin:NAME.", 2)
    return partial(read_raw, form=form)


def _check_topic(brokers: str, spec: TopicSpec, security: Mapping[str, Any]) -> None:
    with TopicAdmin(brokers, security) as admin:
        missing = not admin.describe((spec.name,), configs=False)
    if missing:
        raise HarmonyError(f"There is no topic {spec.name} at {brokers}: `harmony topics create --raw` makes it.")


def _report(done: dict[str, Any], reader: Reader, common: Common) -> None:
    tally = reader.tally
    unplaced = [{"profile": p, "reason": r, "points": n} for (p, r), n in tally.unplaced.most_common()]
    summary = done | {"points": tally.points, "readings": dict(tally.readings), "without_workload": unplaced}
    if common.as_json:
        print_json(summary)
        return
    say(f"{tally.points} samples, {sum(tally.readings.values())} readings, {done['records']} records published.")
    for entry in unplaced:
        say(f"left out: {entry['points']} samples of profile {entry['profile']}: {entry['reason']}")
    for reason, count in done.get("passed_over", {}).items():
        say(f"left out: {count} samples: {reason}")


def _seconds(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise HarmonyError(f"--hold: {error}.", 2) from None


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise HarmonyError(f"--listen {listen!r}: write host:port, such as 127.0.0.1:9201.", 2)
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - asked for, and only with a token


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HarmonyError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.", 2) from None
    if not token:
        raise HarmonyError(f"{path} is empty: put a token in it.", 2)
    return token
