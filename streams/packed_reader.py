"""The fast reading of records that hold many samples: in plain JSON, in any other JSON, and in the binary form."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import astuple

from streams.catalogue import Source
from streams.log import LogRecord
from streams.packed_loop import HEAD, scan_packed
from streams.records.binary import MAGIC, read_binary
from streams.records.json_kernel import NEWEST_MS, NUM_FOUND, NUM_LONG, NUM_SOURCES, WORKLOAD_FROM, WORKLOAD_TO
from streams.records.samples import Bools, Floats, Ints
from streams.records.series_index import SeriesIndex
from streams.records.strict_json import MalformedError
from streams.sample_rows import SampleRows
from streams.wire import FRAME_COLONS, REFUSED, sample_struct

# Of one plain record; what holds more is read as any other JSON.
_MOST_SOURCES: Final = 256
_MOST_LONG: Final = 1_024


class PackedReader:
    """Reads records of many samples of one topic, each alone.

    Args:
        source: which telemetry topic.
        fields: columns of the values, F of them.
        max_bytes: longer values are not taken.
        skew_ms: nor are samples further ahead of their record's stamp.
        index: numbers the series.
        within: [n] whether the values [n, F] of samples lie in their bounds.
    """

    def __init__(
        self, source: Source, fields: Sequence[str], max_bytes: int, skew_ms: int, index: SeriesIndex,
        within: Callable[[Floats], Bools],
    ) -> None:  # fmt: skip
        self._source = source
        self._at = {name: n for n, name in enumerate(fields)}
        self._max_bytes = max_bytes
        self._skew_ms = skew_ms
        self._index = index
        self._within = within
        words = [word.encode() for word in (*HEAD, source, *fields)]
        self._words = np.frombuffer(b"".join(words), np.uint8)
        self._ends = np.cumsum([0, *map(len, words)])
        self._spans = np.empty((_MOST_SOURCES, 2), np.int64)
        self._long = np.empty((_MOST_LONG, 4), np.int64)
        self._found = np.empty(NUM_FOUND, np.int64)
        whole = sample_struct("Whole", source, fields, list[float], (), many=True)
        packed = sample_struct("Packed", source, fields, list[float | None], (), many=True)
        self._parse_whole = msgspec.json.Decoder(whole).decode
        self._parse_packed = msgspec.json.Decoder(packed).decode

    def read(self, record: LogRecord, rows: SampleRows) -> bool:
        """Read a record into the next rows; False, and none is taken, where it is not as it must be."""
        text = record.value
        if text is None or len(text) > self._max_bytes:
            return False
        if text.startswith(MAGIC):
            return self._binary(record, text, rows)
        return self._plain(record, text, rows) or self._json(record, text, rows)

    def _plain(self, record: LogRecord, text: bytes, rows: SampleRows) -> bool:
        first = rows.used
        n: int = scan_packed(
            np.frombuffer(text, np.uint8), self._words, self._ends, first, rows.values, rows.ts_ms, rows.series,
            self._spans, self._long, self._found,
        )  # fmt: skip
        if n < 0:
            return False
        found = self._found.tolist()
        for row, field, start, stop in self._long[: found[NUM_LONG]].tolist():
            rows.values[row, field] = float(text[start:stop])
        workload = text[found[WORKLOAD_FROM] : found[WORKLOAD_TO]].decode()
        names = [text[start:stop].decode() for start, stop in self._spans[: found[NUM_SOURCES]].tolist()]
        place = slice(first, first + n)
        return self._kept(record, rows, place, found[NEWEST_MS], workload, names, rows.series[place])

    def _json(self, record: LogRecord, text: bytes, rows: SampleRows) -> bool:
        try:
            wire = self._parse_whole(text)
        except REFUSED:
            try:
                wire = self._parse_packed(text)
            except REFUSED:
                return False
        n = len(wire.source)
        if n == 0 or len(wire.ts_ms) != n:
            return False
        place = rows.make_room(n)
        present = 0
        for at, column in enumerate(astuple(wire.values)):
            if column == ():
                rows.values[place, at] = np.nan
                continue
            if len(column) != n:
                return False
            present += 1
            try:
                rows.values[place, at] = array("d", column)
            except TypeError:
                rows.values[place, at] = np.array(column, np.float64)
        # Unknown fields and keys that stand twice have colons of their own; an escaped one could make up for it.
        label_colons = wire.workload.count(":") + "".join(wire.source).count(":")
        if text.count(b":") != FRAME_COLONS + present + label_colons or (label_colons and b"\\" in text):
            return False
        rows.ts_ms[place] = wire.ts_ms
        return self._kept(record, rows, place, max(wire.ts_ms), wire.workload, wire.source)

    def _binary(self, record: LogRecord, text: bytes, rows: SampleRows) -> bool:
        try:
            header, source_of, ts_ms, columns = read_binary(text)
        except MalformedError:
            return False
        at = [self._at.get(name, -1) for name in header.names]
        if header.kind != self._source or -1 in at:
            return False
        place = rows.make_room(header.n)
        rows.ts_ms[place] = ts_ms
        rows.values[place] = np.nan
        rows.values[place, at] = columns.T
        return self._kept(record, rows, place, int(ts_ms.max()), header.workload, header.sources, source_of)

    def _kept(
        self, record: LogRecord, rows: SampleRows, place: slice, newest_ms: int, workload: str, sources: Sequence[str],
        source_of: Ints | None = None,
    ) -> bool:  # fmt: skip
        """Take the rows, of these sources [n] or of those that `source_of` [n] says, if the record is as it must be."""
        if newest_ms - record.stamp_ms > self._skew_ms or not self._within(rows.values[place]).all():
            return False
        # Last, for the names of a record that is refused must not be remembered.
        series = self._series_of(record.key, workload, sources)
        if series is None:
            return False
        rows.series[place] = series if source_of is None else series[source_of]
        rows.keep(record, place.stop - place.start)
        return True

    def _series_of(self, key: bytes | None, workload: str, sources: Sequence[str]) -> Ints | None:
        """Series numbers of sources; None when a name or the key is not as it must be."""
        known = self._index.by_record.get
        numbers = [known((key, workload, source)) for source in sources]
        if None in numbers:
            new = {source for source, number in zip(sources, numbers, strict=True) if number is None}
            if not all(self._index.proper(key, workload, source) for source in new):
                return None
            numbers = [self._index.series(workload, source) for source in sources]
        return np.array(numbers, np.int64)
