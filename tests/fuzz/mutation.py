"""Inputs from inputs: bytes and tokens changed, cut, repeated and put together, as a function of the seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

LONGEST = 65_536
TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"null", b"true", b"-", b"-0", b"0.0", b"NaN", b"Infinity"),
    *(
        b"1e999",
        b"9" * 400,
        b"1" * 19,
        b"9007199254740993",
        b'"v":2',
        b'"kind":"gpu"',
        b'"kind":"tick"',
        b'"source":[]',
    ),
    *(b'"ts_ms":1e400', b'"values":{}', b"[" * 40, b'{"a":' * 40, b"a" * 300, b" " * 64, b"<script>", b"\r\n"),
    b'"hist":{"ttft_s":{"le":[1],"cumulative":[1],"count":1,"sum":1}}',
    *(b"\\u0000", b"\\ud800", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3\x28", b"\x00", b"\x00\x00\x00\x80", b"\xff" * 4),
    *(b"HTB1", b"HPL1", b"\x0a\xff\xff\xff\xff\x0f", b"# EOF\n", b'le="+Inf"'),
)
# What a value of a JSON text may become.
VALUES = (
    *(
        None,
        True,
        0,
        -1,
        1,
        0.5,
        1e308,
        -0.0,
        2**53,
        2**53 - 1,
        10**19,
        1_763_636_415_000,
        9e15,
        "",
        "w",
        "a",
        "x" * 200,
    ),
    *([], {}, [[]], [None], [1, 2], ["a", "b"], {"a": 1}, "gpu", "requests", "fleet", "\u0000", "<b>"),
)


class Mutator:
    """Draws inputs from a growing pool; every input is a function of the seed and of what was added.

    Args:
        seeds: where it begins.
    """

    def __init__(self, seeds: Sequence[bytes], rng: random.Random) -> None:
        self._pool = [seed for seed in dict.fromkeys(seeds) if len(seed) <= LONGEST] or [b""]
        self._rng = rng
        self._texts: list[bytes] = []
        for value in self._pool:
            self._know(value)

    def _know(self, value: bytes) -> None:
        if value[:1] in (b"{", b"[") and len(value) < 4_000:
            try:
                if isinstance(json.loads(value), dict | list):
                    self._texts.append(value)
            except (ValueError, RecursionError):
                pass

    def add(self, value: bytes, most: int = 4_000) -> None:
        """Keep an input that did something new."""
        if len(self._pool) < most:
            self._pool.append(value)
            self._know(value)

    def draw(self) -> bytes:
        """The next input, at most `LONGEST` bytes."""
        rng = self._rng
        if self._texts and rng.random() < 0.3:
            return self._restructured()
        value = bytearray(rng.choice(self._pool))
        for _ in range(1 + (rng.random() < 0.4) + rng.randrange(4) * (rng.random() < 0.2)):
            self._change(value)
        return bytes(value[:LONGEST])

    def _restructured(self) -> bytes:
        """A JSON text with some of its parts exchanged, left out, doubled or added; still a JSON text."""
        rng = self._rng
        body = json.loads(rng.choice(self._texts))
        for _ in range(1 + (rng.random() < 0.4)):
            node = body
            while True:
                inner = [x for x in (node.values() if isinstance(node, dict) else node) if isinstance(x, dict | list)]
                if not inner or rng.random() < 0.4:
                    break
                node = rng.choice(inner)
            _exchange(node, rng)
        return json.dumps(body, separators=(",", ":")).encode()[:LONGEST]

    def _change(self, value: bytearray) -> None:
        rng = self._rng
        size = len(value)
        at = rng.randrange(size + 1)
        how = rng.randrange(9)
        if how == 0 and size:
            value[at % size] ^= 1 << rng.randrange(8)
        elif how == 1 and size:
            value[at % size] = rng.randrange(256)
        elif how == 2:
            value[at:at] = rng.choice(TOKENS)
        elif how == 3:
            token = rng.choice(TOKENS)
            value[at : at + len(token)] = token
        elif how == 4:
            del value[at : at + 1 + rng.randrange(1 + min(64, size))]
        elif how == 5:
            end = at + 1 + rng.randrange(1 + min(200, size))
            value[at:at] = value[at:end] * rng.choice((1, 2, 30))
        elif how == 6:
            del value[at:]
        elif how == 7:
            other = rng.choice(self._pool)
            value[at:] = other[rng.randrange(len(other) + 1) :]
        elif size:
            digits = [n for n, byte in enumerate(value[:400]) if 48 <= byte <= 57]
            if digits:
                value[rng.choice(digits)] = rng.choice(b"0123456789-.eE")


def _exchange(node: Any, rng: random.Random) -> None:
    """Change one entry of an object or an array."""
    value = json.loads(json.dumps(rng.choice(VALUES)))
    places = list(node) if isinstance(node, dict) else list(range(len(node)))
    how = rng.randrange(4) if places else 3
    if how == 0:
        del node[rng.choice(places)]
    elif how == 1:
        node[rng.choice(places)] = value
    elif how == 2:
        kept = node[rng.choice(places)]
        node[rng.choice(places)] = kept
    elif isinstance(node, dict):
        node[rng.choice(("v", "kind", "source", "ts_ms", "values", "hist", "new"))] = value
    else:
        node.insert(rng.randrange(len(places) + 1), value)
