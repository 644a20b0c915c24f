"""A decoder of one's own for records of `telemetry.raw`: bytes in, points out, within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from infra.collect.formats.raw_record import NOT_MEASURED, RawPoints
from infra.collect.formats.values import is_instant
from infra.collect.points import Point, is_measured
from infra.console.errors import HarmonyError
from infra.plugins.guarded import Guarded, PluginFailed
from infra.settings.limits import PluginLimits
from infra.settings.plugins import Plugin
from streams.records.strict_json import MalformedError


class PluginDecoder:
    """Reads records by a plug-in with a method `decode(value, stamp_ms)`.

    `ValueError` is the record's fault: it is dead-lettered. Anything else is the plug-in's: the record is dead-lettered
    too, and when that happens to several records in a row the mapper ends, so that a broken decoder cannot send
    everything to the dead letters; the records behind are read again at the next start.

    Raises:
        HarmonyError: the plug-in cannot be made, or has no such method.
    """

    def __init__(self, plugin: Plugin, options: Mapping[str, Any], limits: PluginLimits) -> None:
        self._own = plugin.make(options)
        if not callable(getattr(self._own, "decode", None)):
            raise HarmonyError(
                f"The decoder {plugin.name!r} breaks the contract of docs/plugins.md: no method decode.", 2
            )
        self._plugin = plugin
        # A record that is not decoded is a dead letter, so one that comes during a late call waits, and is a failure
        # where that call never ends.
        self._guarded = Guarded(plugin, limits, blameless=(ValueError,), waits=True)

    def read(self, value: bytes, stamp_ms: int) -> RawPoints:
        """The points of one record.

        Raises:
            MalformedError: with a dead-letter code.
            HarmonyError: the plug-in has failed too often in a row.
        """
        try:
            return self._guarded.call(lambda: _checked(self._own.decode(value, stamp_ms)))
        except ValueError as error:
            raise MalformedError("schema", f"{self._plugin.name}: {error}") from error
        except PluginFailed as error:
            if self._guarded.breaker.open:
                raise HarmonyError(
                    f"The {error}, and so did the calls before it. Mend {self._plugin.distribution} "
                    f"{self._plugin.version}, then start again: what was not yet mapped is read again, and "
                    "`harmony dlq replay` brings back what was dead-lettered."
                ) from error
            raise MalformedError("schema", str(error)) from error


def _checked(answers: Any) -> RawPoints:
    points: list[Point] = []
    passed_over: Counter[str] = Counter()
    for name, labels, ts_ms, value in answers:
        point = Point(str(name), {str(k): str(v) for k, v in dict(labels).items()}, int(ts_ms), float(value))
        if not is_instant(point.ts_ms):
            raise ValueError(f"{point.name[:80]}: {ts_ms} is no time in milliseconds since 1970")
        if is_measured(point.value):
            points.append(point)
        else:
            passed_over[NOT_MEASURED] += 1
    if not points and passed_over:
        raise ValueError(f"nothing in it can be used: {passed_over[NOT_MEASURED]} numbers are not finite")
    return RawPoints(points, passed_over)
