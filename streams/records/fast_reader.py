"""The fast reading of telemetry: ordinary sample records become columns, and all others are passed on unread.

It accepts only records that `RecordDecoder` accepts with the same meaning, and each is still decoded alone. Everything
else goes to the slow decoder, which knows every rule and names the fault: another kind, an unknown name, a number out
of range, a repeated key, a damaged byte.

`PackedReader` reads records with many samples: in plain JSON, in any other JSON, and in the binary form. `SampleReader`
reads records with one sample and calls it for the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import astuple

from streams.catalogue import Indicator, Source, of_source
from streams.log import LogRecord
from streams.records.binary import MAGIC, read_binary
from streams.records.facts import HistogramState
from streams.records.json_kernel import (
    HEAD,
    HEADER_SIZE,
    NEWEST_MS,
    NUM_LONG,
    NUM_SOURCES,
    WORKLOAD_FROM,
    WORKLOAD_TO,
    scan_packed,
    within,
)
from streams.records.limits import RATIO_TOLERANCE, bounds_of, histogram
from streams.records.samples import Bools, Floats, Hists, Ints, SampleRows, SampleRun, merge_runs
from streams.records.schema import FRAME_COLONS, MAX_NUMBER, REFUSED, SampleRecord, sample_struct
from streams.records.series_index import SeriesIndex
from streams.records.strict_json import MalformedError

# Limits of a plain record, in sources and in long numbers; a larger one is read like any other JSON.
_MAX_SOURCES: Final = 256
_MAX_LONG_NUMBERS: Final = 1_024


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
        vocab = [word.encode() for word in (*HEAD, source, *fields)]
        self._vocab = np.frombuffer(b"".join(vocab), np.uint8)
        self._ends = np.cumsum([0, *map(len, vocab)])
        self._spans = np.empty((_MAX_SOURCES, 2), np.int64)
        self._long = np.empty((_MAX_LONG_NUMBERS, 4), np.int64)
        self._header = np.empty(HEADER_SIZE, np.int64)
        dense = sample_struct("Whole", source, fields, list[float], (), many=True)
        packed = sample_struct("Packed", source, fields, list[float | None], (), many=True)
        self._parse_dense = msgspec.json.Decoder(dense).decode
        self._parse_packed = msgspec.json.Decoder(packed).decode

    def read(self, record: LogRecord, rows: SampleRows) -> bool:
        """Read a record into the next rows; False where it is not an ordinary record, and then no row is used."""
        text = record.value
        if text is None or len(text) > self._max_bytes:
            return False
        if text.startswith(MAGIC):
            return self._binary(record, text, rows)
        return self._plain(record, text, rows) or self._json(record, text, rows)

    def _plain(self, record: LogRecord, text: bytes, rows: SampleRows) -> bool:
        first = rows.used
        n: int = scan_packed(
            np.frombuffer(text, np.uint8), self._vocab, self._ends, first, rows.values, rows.ts_ms, rows.series,
            self._spans, self._long, self._header,
        )  # fmt: skip
        if n < 0:
            return False
        header = self._header.tolist()
        for row, field, start, stop in self._long[: header[NUM_LONG]].tolist():
            rows.values[row, field] = float(text[start:stop])
        workload = text[header[WORKLOAD_FROM] : header[WORKLOAD_TO]].decode()
        names = [text[start:stop].decode() for start, stop in self._spans[: header[NUM_SOURCES]].tolist()]
        place = slice(first, first + n)
        return self._accept(record, rows, place, header[NEWEST_MS], workload, names, rows.series[place])

    def _json(self, record: LogRecord, text: bytes, rows: SampleRows) -> bool:
        try:
            wire = self._parse_dense(text)
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
        # Unknown fields and repeated keys add colons. Where labels hold colons, an escaped one could hide that.
        label_colons = wire.workload.count(":") + "".join(wire.source).count(":")
        if text.count(b":") != FRAME_COLONS + present + label_colons or (label_colons and b"\\" in text):
            return False
        rows.ts_ms[place] = wire.ts_ms
        return self._accept(record, rows, place, max(wire.ts_ms), wire.workload, wire.source)

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
        return self._accept(record, rows, place, int(ts_ms.max()), header.workload, header.sources, source_of)

    def _accept(
        self, record: LogRecord, rows: SampleRows, place: slice, newest_ms: int, workload: str, sources: Sequence[str],
        source_of: Ints | None = None,
    ) -> bool:  # fmt: skip
        """Keep the rows if the record is valid; `source_of` [n] indexes `sources`, None: they are [n] themselves."""
        if newest_ms - record.stamp_ms > self._skew_ms or not self._within(rows.values[place]).all():
            return False
        # The last step, because names of a refused record must not enter the index.
        series = self._series_of(record.key, workload, sources)
        if series is None:
            return False
        rows.series[place] = series if source_of is None else series[source_of]
        rows.keep(record, place.stop - place.start)
        return True

    def _series_of(self, key: bytes | None, workload: str, sources: Sequence[str]) -> Ints | None:
        """Series numbers of sources; None when a name or the key is not valid."""
        number_of = self._index.by_record.get
        numbers = [number_of((key, workload, source)) for source in sources]
        if None in numbers:
            new = {source for source, number in zip(sources, numbers, strict=True) if number is None}
            if not all(self._index.proper(key, workload, source) for source in new):
                return None
            numbers = [self._index.series(workload, source) for source in sources]
        return np.array(numbers, np.int64)


# Colons in the text of one histogram.
_HIST_COLONS = 4
# Value of an absent field; JSON has no infinity, so no publisher can write it.
_ABSENT: Final = -np.inf
# A reading ends with the record that reaches this many samples and unread records, which fit the cache of a core.
_RUN_SAMPLES = 8_192
_ROOM_SAMPLES = 4_096  # room for its last record; rows take memory only when they are written
_offset = attrgetter("offset")


class Reading(NamedTuple):
    """Consecutive records: ordinary samples as a run, and the records for the slow decoder, in order."""

    run: SampleRun | None
    rest: Sequence[LogRecord]


class SampleReader:
    """Reads the records of one partition of one telemetry topic.

    Args:
        catalogue: indicators; those of the source give the fields and their bounds.
        source: which telemetry topic.
        max_bytes: longer values go to the slow decoder.
        skew_ms: so do samples further ahead of their record's stamp.
        index: numbers the series.

    Attributes:
        fields: columns of the values, F of them.
    """

    def __init__(
        self, catalogue: Sequence[Indicator], source: Source, max_bytes: int, skew_ms: int, index: SeriesIndex
    ) -> None:
        own = of_source(tuple(catalogue), source)
        bounds = bounds_of(own)
        self.fields = tuple(bounds)
        self._index = index
        self._max_bytes = max_bytes
        self._skew_ms = skew_ms
        self._hist_names = frozenset(f for i in own if i.rule == "p95" for f in i.fields)
        at = {name: n for n, name in enumerate(self.fields)}
        parts = [(at[i.fields[0]], at[i.fields[1]]) for i in own if i.rule == "ratio"]
        self._parts = np.array(parts, np.int64).reshape(-1, 2)
        self._lower = np.array([b.lower for b in bounds.values()])
        self._upper = np.array([b.upper for b in bounds.values()])
        slack = np.array([b.slack for b in bounds.values()])
        self._least = np.maximum(self._lower - slack, np.nextafter(-MAX_NUMBER, 0))
        self._greatest = np.minimum(self._upper + slack, np.nextafter(MAX_NUMBER, 0))
        single = sample_struct("Single", source, self.fields, float | None, _ABSENT, many=False)
        self._parse_single = msgspec.json.Decoder(single).decode
        self._packed = PackedReader(source, self.fields, max_bytes, skew_ms, index, self._within)
        self._singles_first = True

    def read(self, records: Sequence[LogRecord]) -> Iterator[Reading]:
        """Read records in log order, some thousand samples at a time; offsets must ascend."""
        at = 0
        while at < len(records):
            take = self._read_singles if self._singles_first else self._read_packed
            at, reading = take(records, at)
            if reading.run is not None or reading.rest:
                yield reading

    def run_of(self, decoded: Sequence[tuple[LogRecord, SampleRecord]]) -> SampleRun:
        """The run of records that the slow decoder has read."""
        samples = [(record.workload, sample) for _, record in decoded for sample in record.samples]
        columns = [[s.values.get(name) for name in self.fields] for _, s in samples]
        unknown = [record.unknown_names for _, record in decoded]
        return SampleRun(
            np.array([record.offset for record, _ in decoded], np.int64),
            np.array([record.stamp_ms for record, _ in decoded], np.int64),
            np.array([len(record.samples) for _, record in decoded], np.int64),
            np.array([self._index.series(workload, s.source) for workload, s in samples], np.int64),
            np.array([s.ts_ms for _, s in samples], np.int64),
            np.array(columns, np.float64).reshape(len(samples), len(self.fields)),
            [(at, dict(s.hists)) for at, (_, s) in enumerate(samples) if s.hists],
            np.array(unknown, np.int64) if any(unknown) else None,
        )

    # One sample per record.

    def _read_singles(self, records: Sequence[LogRecord], at: int) -> tuple[int, Reading]:
        part = records[at : at + _RUN_SAMPLES]
        texts: list[Any] = [record.value for record in part]
        waiting = iter(texts)
        wires: list[Any] = []
        refused: list[LogRecord] = []
        runs: list[SampleRun] = []
        while self._singles_first:
            try:
                # What was parsed before one that is refused stays in the list, and the parser goes on behind it.
                wires.extend(map(self._parse_single, waiting))
                break
            except REFUSED:
                record, text = part[len(wires)], texts[len(wires)]
                wires.append(None)
                # Without an array there are no columns.
                columns = text is not None and (b"[" in text or text.startswith(MAGIC))
                run = self._one_packed(record) if columns else None
                if run is None:
                    refused.append(record)
                else:
                    runs.append(run)
                    self._singles_first = False
        part = part[: len(wires)]
        if len(wires) > len(refused) + len(runs):
            read = part
            if refused or runs:
                read = [record for record, wire in zip(part, wires, strict=True) if wire is not None]
                wires = [wire for wire in wires if wire is not None]
            run, bad = self._singles(read, wires)
            if run is not None:
                runs.append(run)
            if bad:
                refused = sorted([*refused, *bad], key=_offset)
        return at + len(part), Reading(merge_runs(runs) if runs else None, refused)

    def _one_packed(self, record: LogRecord) -> SampleRun | None:
        rows = SampleRows(_ROOM_SAMPLES, len(self.fields))
        self._packed.read(record, rows)
        return rows.run()

    def _try_single(self, record: LogRecord) -> Any:
        try:
            return self._parse_single(record.value)  # type: ignore[arg-type]
        except REFUSED:
            return None

    def _singles(self, records: Sequence[LogRecord], wires: Sequence[Any]) -> tuple[SampleRun | None, list[LogRecord]]:
        """The run of the valid records, and the others."""
        n, width = len(records), len(self.fields)
        number_of = self._index.by_record.get
        numbers = [number_of((r.key, w.workload, w.source), -1) for r, w in zip(records, wires, strict=True)]
        if min(numbers) < 0:
            for i, (r, w) in enumerate(zip(records, wires, strict=True)):
                if numbers[i] < 0:
                    number = number_of((r.key, w.workload, w.source))  # an earlier record may have added it
                    numbers[i] = self._index.checked(r.key, w.workload, w.source) if number is None else number
        rows = [astuple(w.values) for w in wires]
        try:
            values = np.fromiter(chain.from_iterable(rows), np.float64, n * width).reshape(n, width)
        except TypeError:  # a null among them
            values = np.array(rows, np.float64).reshape(n, width)
        series = np.array(numbers, np.int64)
        stamps = np.array([r.stamp_ms for r in records], np.int64)
        ts_ms = np.array([w.ts_ms for w in wires], np.int64)
        texts: list[Any] = [r.value for r in records]
        absent = values == _ABSENT
        expected = FRAME_COLONS + width - absent.sum(axis=1) + self._index.colons_of[series]
        hists = self._hists(wires, expected)
        num_colons = np.fromiter([text.count(b":") for text in texts], np.int64, n)
        # Unknown fields and repeated keys add colons.
        good = (series >= 0) & (num_colons == expected) & (ts_ms - stamps <= self._skew_ms)
        if max(map(len, texts)) > self._max_bytes:
            good &= np.array([len(text) <= self._max_bytes for text in texts])
        for i in np.flatnonzero(good & (self._index.colons_of[series] > 0)).tolist():
            # Where labels hold colons, an escaped one could hide an added one.
            good[i] = b"\\" not in texts[i]
        if absent.any():
            values[absent] = np.nan
        good &= self._within(values)
        offsets = np.array([r.offset for r in records], np.int64)
        run = SampleRun(offsets, stamps, np.ones(n, np.int64), series, ts_ms, values, hists)
        if good.all():
            return run, []
        bad = [records[i] for i in np.flatnonzero(~good).tolist()]
        return (run.only(good) if good.any() else None), bad

    def _hists(self, wires: Sequence[Any], expected: Ints) -> list[tuple[int, Hists]]:
        """Histograms by sample; adds their colons to `expected`, or makes it -1 where a histogram is not valid."""
        hists: list[tuple[int, Hists]] = []
        for i, wire in enumerate(wires):
            if wire.hist is None:
                continue
            sample_hists: dict[str, HistogramState] = {}
            try:
                for name, state in wire.hist.items():
                    if name not in self._hist_names:
                        expected[i] = -1
                    sample_hists[name] = histogram(name, state)
            except MalformedError:
                expected[i] = -1
            expected[i] += 1 + (1 + _HIST_COLONS) * len(sample_hists)
            if sample_hists:
                hists.append((i, sample_hists))
        return hists

    # Many samples per record.

    def _read_packed(self, records: Sequence[LogRecord], at: int) -> tuple[int, Reading]:
        rows = SampleRows(_RUN_SAMPLES + _ROOM_SAMPLES, len(self.fields))
        refused: list[LogRecord] = []
        while at < len(records) and rows.used + len(refused) < _RUN_SAMPLES:
            if not self._packed.read(records[at], rows):
                if self._try_single(records[at]) is not None:
                    self._singles_first = True
                    break
                refused.append(records[at])
            at += 1
        return at, Reading(rows.run(), refused)

    def _within(self, values: Floats) -> Bools:
        """[n] whether every value lies in its bounds; one beyond a bound by rounding becomes the bound, in place."""
        good = np.empty(len(values), np.bool_)
        within(
            values, self._least, self._greatest, self._lower, self._upper, self._parts, RATIO_TOLERANCE, good
        )  # fmt: skip
        return good
