"""Telemetry as other programs write it, drawn from each format's grammar; and the numbers that stand in an input.

A drawn input is right in most of its parts: where it is odd, all else leads a reader to the odd place. Whatever a
reader makes of it, every value that comes out must stand in the input, which is looked through without that reader.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import cramjam

from tests.fuzz.mutation import VALUES
from tests.infra.collect.test_remote_write import message, varint

AT_MS = 1_763_636_415_000
_NAMES = ("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds", "a", "a.b", "ü")
_KEYS = ("instance", "pod", "k8s.pod.name", "le", "model_name", "__name__", "x")
_TEXTS = ("p-0", "", "1", "0.5", "+Inf", 'a"b\\c\nd', " # {", "},{", "é", "\ud7ff")
_NUMBERS = (
    *(0, 1, 4, 0.5, 1e-9, 1e300, 41.25, 100, 2**31, 2**53 - 1, 9223372036854775794, -0.0, 17 * 10**17),
    *("4", "0.41", "NaN", "+Inf", "-Infinity", "1e3", "-0", "9" * 30),
)
_NO_NUMBERS = ("4,0", "4_0", " 4", "0x4", "1e999", "٤", -1, None, "")
_TIMES = (
    *(AT_MS, AT_MS // 1000, AT_MS / 1000, AT_MS * 1000, AT_MS * 10**6, str(AT_MS * 10**6), 0, "0", None),
    *("2025-11-20T11:00:15Z", "2025-11-20T11:00:15.123456789Z", "1.7e9"),
)
_NO_TIMES = (-1, 10**30, "soon", "0001-01-01T00:00:00Z", "NaN", [])
_ODD = 0.02


class Grammar:
    """Draws inputs of each format.

    Args:
        rng: every input is a function of its state.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    # Pieces of JSON.

    def _pick(self, values: tuple[Any, ...]) -> Any:
        return self._rng.choice(VALUES) if self._rng.random() < _ODD else self._rng.choice(values)

    def _object(self, **fields: Any) -> Any:
        """The fields, seldom without one of them or with an odd one."""
        rng = self._rng
        kept = {key: value for key, value in fields.items() if rng.random() > _ODD / 2}
        if rng.random() < _ODD:
            kept[rng.choice(list(fields))] = rng.choice(VALUES)
        return kept

    def _several(self, make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(self._rng.randrange(most + 1))]

    def _labels(self) -> Any:
        return {self._rng.choice(_KEYS): self._pick(_TEXTS) for _ in range(self._rng.randrange(3))}

    def _number(self) -> Any:
        return self._pick(_NO_NUMBERS if self._rng.random() < _ODD else _NUMBERS)

    def _time(self) -> Any:
        return self._pick(_NO_TIMES if self._rng.random() < _ODD else _TIMES)

    def _counts(self, size: int) -> list[Any]:
        counts = [self._rng.randrange(100) for _ in range(size)]
        return [str(n) if self._rng.random() < 0.5 else n for n in counts] if self._rng.random() > _ODD else ["x"]

    def _written(self, document: Any) -> bytes:
        text = json.dumps([document, document] if self._rng.random() < _ODD else document)
        return text.encode("utf-8", "surrogatepass")

    # Formats.

    def otlp(self) -> bytes:
        scope = lambda: self._object(scope=self._scope(), metrics=self._several(self._metric))  # noqa: E731
        resource = lambda: self._object(  # noqa: E731
            resource={"attributes": self._attributes()},
            scopeMetrics=[scope() for _ in range(1 + self._rng.randrange(2))],
        )
        return self._written({"resourceMetrics": [resource() for _ in range(1 + self._rng.randrange(2))]})

    def _scope(self) -> Any:
        return self._pick(({}, {"name": "s"}, {"name": "s", "version": "1", "attributes": self._attributes()}))

    def _attributes(self) -> Any:
        kinds = (
            *(
                {"stringValue": "a"},
                {"intValue": "1"},
                {"doubleValue": 0.5},
                {"boolValue": True},
                {"bytesValue": "YQ=="},
            ),
            *({"arrayValue": {"values": [{"intValue": "1"}]}}, {"kvlistValue": {"values": []}}, {}),
        )
        return self._several(lambda: self._object(key=self._pick(_KEYS), value=self._pick(kinds)), 2)

    def _metric(self) -> Any:
        kind = self._pick(("gauge", "sum", "histogram", "histogram", "exponentialHistogram", "summary"))
        temporality = self._pick((2, 2, 2, "AGGREGATION_TEMPORALITY_CUMULATIVE", 1, 0, None))
        points = self._several(self._histogram_point if kind == "histogram" else self._number_point)
        body = self._object(dataPoints=points, aggregationTemporality=temporality, isMonotonic=True)
        return self._object(**{"name": self._pick(_NAMES), str(kind): body})

    def _point(self, **fields: Any) -> Any:
        time, flags = self._time(), self._pick((0, 0, 0, 1, "1", 2, 3, None))
        return self._object(attributes=self._attributes(), timeUnixNano=time, flags=flags, **fields)

    def _number_point(self) -> Any:
        return self._point(**{self._rng.choice(("asDouble", "asInt")): self._number()})

    def _histogram_point(self) -> Any:
        size = self._rng.randrange(4)
        bounds = [self._pick((0.5 * n, str(0.5 * n))) for n in range(size)]
        return self._point(
            count=self._number(), sum=self._number(), explicitBounds=bounds, bucketCounts=self._counts(size + 1)
        )

    def telegraf(self) -> bytes:
        def item() -> Any:
            fields = (*_NAMES, "gauge", "counter", "value", "count", "sum", "0.5", "+Inf", "1_0")
            held = {str(self._pick(fields)): self._number() for _ in range(self._rng.randrange(4))}
            name = self._pick(("prometheus", "engines", *_NAMES))
            return self._object(name=name, tags=self._labels(), fields=held, timestamp=self._time())

        return self._written({"metrics": self._several(item)} if self._rng.random() < 0.3 else item())

    def vector(self) -> bytes:
        size = self._rng.randrange(4)
        limits = [0.5 * n for n in range(size)] + [self._pick((None, "inf", "+Inf", 9.0))]
        counts = self._counts(size + 1)
        buckets = [self._object(upper_limit=limit, count=n) for limit, n in zip(limits, counts, strict=False)]
        histogram = self._object(buckets=buckets, count=self._number(), sum=self._number())
        simple = self._object(value=self._number())
        kind, body = self._rng.choice(
            (
                ("gauge", simple),
                ("counter", simple),
                ("aggregated_histogram", histogram),
                ("set", {}),
                ("distribution", {}),
            )
        )
        item = self._object(
            name=self._pick(_NAMES), kind=self._pick(("absolute", "absolute", "incremental")), tags=self._labels(),
            timestamp=self._time(), **{kind: body},
        )  # fmt: skip
        return self._written({"metric": item} if self._rng.random() < 0.3 else item)

    def adapter(self) -> bytes:
        labels = {"__name__": self._pick(_NAMES), **self._labels()}
        time = self._time()
        return self._written(self._object(timestamp=time, value=self._number(), name=self._pick(_NAMES), labels=labels))

    def answer(self) -> bytes:
        def pair() -> Any:
            return self._pick(([self._time(), self._number()], [self._time(), "4"]))

        def series() -> Any:
            metric = {"__name__": self._pick(_NAMES), "x": "1"}
            values, times = self._several(self._number), [AT_MS, AT_MS + 1]
            shapes = ({"value": pair()}, {"values": self._several(pair)}, {"values": values, "timestamps": times})
            return self._object(metric=metric, **self._rng.choice(shapes))

        result = self._object(resultType=self._pick(("vector", "matrix", "scalar")), result=self._several(series))
        answer = self._object(status=self._pick(("success", "success", "error")), data=result)
        return self._written(self._rng.choice((answer, answer, series(), [series()])))

    def documents(self) -> bytes:
        """JSON documents in any layout, as a file holds them."""
        rng = self._rng
        makers = (self.otlp, self.telegraf, self.vector, self.adapter, self.answer)
        texts = [rng.choice(makers)().decode("utf-8", "surrogatepass") for _ in range(1 + rng.randrange(3))]
        indented = rng.random() < 0.5
        texts = [json.dumps(json.loads(text), indent=1) if indented else text for text in texts]
        whole = (
            f"[{','.join(texts)}]" if rng.random() < 0.2 else rng.choice(("\n", "\n\n", "\r\n", ",\n", "")).join(texts)
        )
        whole = whole[: rng.randrange(1, len(whole))] if rng.random() < 0.1 else whole
        return whole.encode("utf-8", "replace")

    def exposition(self) -> bytes:
        return "".join(self._line() for _ in range(1 + self._rng.randrange(5))).encode("utf-8", "replace")

    def _line(self) -> str:
        rng = self._rng
        odd = rng.random() < _ODD
        if rng.random() < 0.1:
            return (
                rng.choice(
                    ("<html>", "{", "a") if odd else ("# HELP a b", "\t# TYPE a counter", "# EOF", " ", "\ufeff")
                )
                + "\n"
            )
        ends = ("", "\r", ' # {} "\n') if odd else ("\n", "\r\n", " \n", ' # {a="b"} 1.5 1700000000\n', "#x\n")
        name = rng.choice(_NAMES)
        quoted = rng.random() < 0.3 or name in ("a.b", "ü")
        keys = rng.sample(_KEYS[:-2], rng.randrange(4)) if rng.random() > _ODD else list(_KEYS) * 2
        pairs = [self._pair(key) for key in keys]
        pairs.insert(rng.randrange(len(pairs) + 1), f'"{name}"') if quoted else None
        comma = rng.choice((",", " , ")) if rng.random() > _ODD else ";"
        inside = comma.join(pairs) + rng.choice(("", "", ",", " "))
        head = ("" if quoted else name) + ("{" + inside + "}" if pairs or rng.random() < 0.2 else "")
        words = [str(self._number())] + [str(rng.choice((AT_MS, AT_MS / 1000, self._time() or 0)))] * (
            rng.random() < 0.3
        )
        words += ["5"] * (rng.random() < _ODD)
        blank = rng.choice((" ", " ", "\t", "  ") if rng.random() > _ODD else ("\u00a0", ""))
        return rng.choice(("", "", "", "  ", "\t", "\ufeff")) + head + blank + blank.join(words) + rng.choice(ends)

    def _pair(self, key: str) -> str:
        text = self._rng.choice(_TEXTS)
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
        text = escaped if self._rng.random() > _ODD else text
        key = f'"{key}"' if "." in key or self._rng.random() < 0.1 else key
        return self._rng.choice((f'{key}="{text}"', f'{key} = "{text}"'))

    # Protobuf, by an encoder of our own after the published field numbers.

    def remote_write(self) -> bytes:
        def series() -> bytes:
            pairs = [("__name__", self._rng.choice(_NAMES)), *((k, self._rng.choice(_TEXTS)) for k in _KEYS[:2])]
            labels = [message(1, message(1, k.encode()) + message(2, v.encode())) for k, v in pairs]
            samples = [message(2, self._double(1) + self._int64(2)) for _ in range(self._rng.randrange(3))]
            return message(1, self._shuffled([*labels, *samples, message(4, b"\x08\x01")]))

        request = self._shuffled([series() for _ in range(1 + self._rng.randrange(3))])
        return bytes(cramjam.snappy.compress_raw(request))

    def otlp_protobuf(self) -> bytes:
        rng = self._rng

        def attribute(field: int) -> bytes:
            value = rng.choice((message(1, b"a"), b"\x10\x01", b"\x18\x05", message(5, b""), message(7, b"x"), b""))
            return message(field, message(1, rng.choice(_KEYS).encode()) + message(2, value))

        def time() -> bytes:
            nanos = rng.choice((0, AT_MS * 10**6, AT_MS * 10**6 + 1, 2**63))
            return b"\x19" + struct.pack("<Q", nanos)

        def flags(field: int) -> bytes:
            return varint(field << 3) + varint(rng.choice((0, 0, 1, 2, 3, 2**32 - 1)))

        def number_point() -> bytes:
            value = (
                self._double(4) if rng.random() < 0.5 else b"\x31" + struct.pack("<q", rng.choice((0, 4, -1, 2**62)))
            )
            return message(1, self._shuffled([attribute(7), time(), value, flags(8)]))

        def histogram_point() -> bytes:
            size = rng.randrange(4)
            counts = [rng.randrange(100) for _ in range(size + 1)]
            packed = message(6, struct.pack(f"<{size + 1}Q", *counts))
            bounds = message(7, struct.pack(f"<{size}d", *(0.5 * n for n in range(size))))
            count = b"\x21" + struct.pack("<Q", rng.choice((sum(counts), 0, 5)))
            return message(1, self._shuffled([attribute(9), time(), count, self._double(5), packed, bounds, flags(10)]))

        def metric() -> bytes:
            field = rng.choice((5, 7, 9, 9, 10, 11))
            points = [(histogram_point if field == 9 else number_point)() for _ in range(rng.randrange(3))]
            body = self._shuffled([*points, b"\x10" + varint(rng.choice((2, 2, 2, 1, 0)))])
            return message(2, message(1, rng.choice(_NAMES).encode()) + message(field, body))

        def resource() -> bytes:
            scope = message(
                2, message(1, message(1, b"s")) + self._shuffled([metric() for _ in range(rng.randrange(3))])
            )
            return message(1, message(1, attribute(1)) + scope)

        return self._shuffled([resource() for _ in range(1 + rng.randrange(2))])

    def _double(self, field: int) -> bytes:
        value = self._rng.choice((0.0, 4.0, 41.25, -1.0, 1e300, float("nan"), float("inf"), 9223372036854775794.0))
        return varint(field << 3 | 1) + struct.pack("<d", value)

    def _int64(self, field: int) -> bytes:
        return varint(field << 3) + varint(
            self._rng.choice((2**53, 2**64 - 5) if self._rng.random() < _ODD else (AT_MS, 0))
        )

    def _shuffled(self, parts: list[bytes]) -> bytes:
        """The parts of a message, seldom one left out, doubled, cut or exchanged for others."""
        rng = self._rng
        if parts and rng.random() < _ODD:
            place = rng.randrange(len(parts))
            part = parts[place]
            parts[place] = rng.choice((b"", part * 2, part[: len(part) // 2], bytes(rng.randbytes(4)), part))
        if rng.random() < 0.1:
            rng.shuffle(parts)
        return b"".join(parts)


# The numbers that stand in an input.

_WORDS = re.compile(r"[\s{}#\ufeff]+")


def numbers_in_text(value: bytes) -> set[float]:
    """All words that float() takes."""
    return set(_floats(_WORDS.split(value.decode("utf-8", "replace"))))


def numbers_in_json(value: bytes) -> set[float]:
    """All numbers and all texts that float() takes, and the running sums of buckets, of one or more documents."""
    found: set[float] = set()
    text, at, decoder = value.decode("utf-8", "replace"), 0, json.JSONDecoder(parse_int=float)
    while (at := _next_document(text, at)) < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        _walk(document, found)
    return found


def _next_document(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _walk(node: Any, found: set[float]) -> None:
    if isinstance(node, dict):
        for key, inner in node.items():
            if key == "bucketCounts" and isinstance(inner, list):
                found.update(accumulate(_floats(inner)))
            if key == "buckets" and isinstance(inner, list):
                found.update(accumulate(_floats([b.get("count") for b in inner if isinstance(b, dict)])))
            _walk(inner, found)
    elif isinstance(node, list):
        for inner in node:
            _walk(inner, found)
    else:
        found.update(_floats([node]))


def _floats(values: list[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                yield float(value)
            except (ValueError, OverflowError):
                continue


def numbers_in_request(value: bytes) -> set[float]:
    """Every eight bytes of a remote-write request as a double; and 0, which protobuf leaves out."""
    body = bytes(cramjam.snappy.decompress_raw(value))
    return {0.0} | {struct.unpack_from("<d", body, at)[0] for at in range(len(body) - 7)}


def numbers_in_otlp_protobuf(value: bytes) -> set[float]:
    """All numbers of the message, running sums of lists of them, and 0, which protobuf leaves out."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    found = {0.0}

    def walk(node: Any) -> None:
        for _, inner in node.ListFields():
            if isinstance(inner, int | float):
                found.add(float(inner))
            elif hasattr(inner, "ListFields"):
                walk(inner)
            elif not isinstance(inner, str | bytes):
                for part in inner:
                    if hasattr(part, "ListFields"):
                        walk(part)
                found.update(accumulate(_floats(list(inner))))

    walk(MetricsData.FromString(value))
    return found
