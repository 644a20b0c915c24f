"""Lines of `name;label=value,...;epoch seconds;number`, several per record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Semicolons:
    """Options: prefix, put before every name (default none)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._prefix = str(options.get("prefix", ""))

    def decode(self, value: bytes, stamp_ms: int) -> Iterator[tuple[str, dict[str, str], int, float]]:
        """Points: name, labels, event time in ms, value. `ValueError` = the record is bad, and is dead-lettered."""
        for line in value.decode("utf-8").splitlines():
            name, labels, seconds, number = line.split(";")
            ts_ms = round(float(seconds) * 1000) if seconds else stamp_ms
            yield (
                self._prefix + name,
                dict(pair.split("=", 1) for pair in labels.split(",") if pair),
                ts_ms,
                float(number),
            )
