"""Records of an earlier day are read to the same values, written to the same bytes, and told apart by their version."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from streams.log import ContractBroken, OtherSettings
from streams.runtime.commits import encode_commit
from tests.golden.kinds import Wire, kinds
from tests.golden.stored import BEFORE, load, wires_of

KINDS = {kind.name: kind for kind in kinds()}
STORED = load()
AGAIN = "give the format a new version, then run: python -m tests.golden.stored --again"
each_kind = pytest.mark.parametrize("name", KINDS)


# Fields of the learned state that a release has left out on purpose: of units that are gone, and of trials.
GONE = {"other_rate", "per_request", "shape", "tried"}


def covers(now: Any, then: Any) -> bool:
    """Whether everything that stood there then stands there now; a format may grow within a version."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(
            name in now and covers(now[name], then[name]) for name in then.keys() - GONE
        )
    if isinstance(then, list):
        same_length = isinstance(now, list) and len(now) == len(then)
        return same_length and all(covers(n, t) for n, t in zip(now, then, strict=True))
    return bool(now == then)


def test_every_kind_is_stored() -> None:
    assert {name.partition(BEFORE)[0] for name in STORED} == KINDS.keys(), (
        "python -m tests.golden.stored adds what is new"
    )
    assert STORED.keys() >= KINDS.keys()


@pytest.mark.parametrize("name", STORED)
def test_what_was_written_then_is_read_to_the_same_values(name: str) -> None:
    entry = STORED[name]
    assert covers(KINDS[name.partition(BEFORE)[0]].read(wires_of(entry)), entry["reads"])


@each_kind
def test_the_same_input_gives_the_same_bytes_or_another_version(name: str) -> None:
    kind, stored = KINDS[name], wires_of(STORED[name])
    written = kind.write(stored)
    if written != stored and kind.version(written) == kind.version(stored):
        # Deflated bytes are the compression library's; and a field that is new harms no reader of this version.
        assert covers(kind.read(written), STORED[name]["reads"]), f"{name}: {AGAIN} {name!r}"
        assert [(w.key, *w.headers) for w in written] == [(w.key, *w.headers) for w in stored]


@each_kind
def test_a_changed_byte_does_not_pass_for_the_stored_record(name: str) -> None:
    kind, entry = KINDS[name], STORED[name]

    def spoiled(value: bytes) -> bytes:
        at = max(0, len(value) - 3)
        return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]

    try:
        found = kind.read([w._replace(value=spoiled(w.value)) for w in wires_of(entry)])
    except (msgspec.MsgspecError, ContractBroken):
        return
    assert not covers(found, entry["reads"])


# Fields that a later release may add.


def in_json(value: bytes, **added: Any) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value) | added)


def in_values(value: bytes) -> bytes:
    body = msgspec.json.decode(value)
    return msgspec.json.encode(body | {"values": body["values"] | {"later_total": 1}})


def in_binary(value: bytes, **added: Any) -> bytes:
    end = 8 + int.from_bytes(value[4:8], "little")
    header = in_json(value[8:end], **added)
    return value[:4] + len(header).to_bytes(4, "little") + header + value[end:]


def in_plan(value: bytes, **added: Any) -> bytes:
    return value[:4] + zlib.compress(msgspec.msgpack.encode(msgspec.msgpack.decode(zlib.decompress(value[4:])) | added))


def in_page(wires: Sequence[Wire], **added: Any) -> list[Wire]:
    """Both pages, each sealed anew in one chunk."""
    bodies: dict[bytes, bytes] = {}
    for w in wires:
        bodies[(w.key or b"")[:-2]] = bodies.get((w.key or b"")[:-2], b"") + w.value[24:]
    changed = []
    for key, body in bodies.items():
        end = 4 + int.from_bytes(body[:4], "big")
        header = msgspec.msgpack.encode(msgspec.msgpack.decode(body[4:end]) | added)
        whole = len(header).to_bytes(4, "big") + header + body[end:]
        head = b"HPG1" + bytes([0, 0, 0, 1]) + hashlib.blake2b(whole, digest_size=16).digest()
        changed.append(Wire(key + b"\0\0", head + whole))
    return changed


def in_commit(wires: Sequence[Wire], change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Wire]:
    _, stage, partition, sequence, _, _, _, previous, body = msgspec.msgpack.decode(wires[0].value)
    changed = msgspec.msgpack.encode(change(msgspec.msgpack.decode(zlib.decompress(body))))
    _, records = encode_commit("commits", stage, partition, sequence, previous, changed)
    return [Wire(r.key, r.value or b"") for r in records]


def chunks(wires: Sequence[Wire], change: Callable[[list[Any]], list[Any]]) -> list[Wire]:
    return [w._replace(value=msgspec.msgpack.encode(change(msgspec.msgpack.decode(w.value)))) for w in wires]


def first(change: Callable[[bytes], bytes]) -> Callable[[Sequence[Wire]], list[Wire]]:
    return lambda wires: [wires[0]._replace(value=change(wires[0].value)), *wires[1:]]


def in_states(wires: Sequence[Wire], part: str, **added: Any) -> list[Wire]:
    """Numbers of this part of what was learned of each workload."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        return body | {"states": {w: s | {part: s[part] | added} for w, s in body["states"].items()}}

    return in_commit(wires, change)


Change = Callable[[Sequence[Wire]], list[Wire]]
TOLD = [name for name in KINDS if name.startswith("telemetry") and "binary" not in name]
IGNORED: dict[str, Change] = {
    **{name: first(lambda v: in_json(v, later=1)) for name in (*TOLD, "forecast", "decision", "command")},
    "page": lambda wires: in_page(wires, later=1),
    "plan": first(lambda value: in_plan(value, later=1)),
    "coarse row": lambda wires: chunks(wires, lambda parts: [*parts, "later"]),
    "commit, decide": lambda wires: in_commit(wires, lambda body: body | {"later": 1}),
    "commit, forecast": lambda wires: in_commit(wires, lambda body: body | {"later": 1}),
}


@pytest.mark.parametrize("name", IGNORED)
def test_a_field_of_a_later_release_is_passed_over(name: str) -> None:
    entry = STORED[name]
    changed = IGNORED[name](wires_of(entry))
    assert changed != wires_of(entry)
    found, then = KINDS[name].read(changed), entry["reads"]
    if name == "page":  # their digests and their number of chunks are others now
        found, then = ([page for page, *_ in pages] for pages in (found, then))
    assert covers(found, then)


def test_a_name_of_a_later_release_in_telemetry_is_counted() -> None:
    for name in ("telemetry: requests", "telemetry: gpu"):
        (now,) = KINDS[name].read(first(in_values)(wires_of(STORED[name])))
        (then,) = STORED[name]["reads"]
        assert covers(now, then | {"unknown_names": 1})


LETTERS: list[tuple[str, Change, str]] = [
    *((name, first(lambda v: in_json(v, v=2)), "version") for name in TOLD),
    ("telemetry: gpu, binary", first(lambda v: in_binary(v, v=2)), "version"),
    # It says how many bytes follow, so a reader that does not know all of it cannot know what they are.
    ("telemetry: gpu, binary", first(lambda v: in_binary(v, later=1)), "schema"),
]


@pytest.mark.parametrize(("name", "change", "code"), LETTERS)
def test_telemetry_of_another_version_is_a_dead_letter(name: str, change: Change, code: str) -> None:
    (letter,) = KINDS[name].read(change(wires_of(STORED[name])))
    assert letter["code"] == code


REFUSED: list[tuple[str, Change, type[Exception], str]] = [
    ("decision", first(lambda v: in_json(v, v=2)), msgspec.MsgspecError, "version is 2"),
    ("command", first(lambda v: in_json(v, v=2)), msgspec.MsgspecError, "version is 2"),
    ("page", lambda w: in_page(w, v=2), OtherSettings, "format version 2"),
    ("coarse row", lambda w: chunks(w, lambda parts: [2, *parts[1:]]), OtherSettings, "has version 2"),
    ("plan", first(lambda v: in_plan(v, v=2)), OtherSettings, "has version 2"),
    ("commit, decide", lambda w: chunks(w, lambda parts: [2, *parts[1:]]), OtherSettings, "has version 2"),
    ("commit, decide", lambda w: in_commit(w, lambda body: body | {"v": 2}), OtherSettings, "has version 2"),
    ("commit, forecast", lambda w: chunks(w, lambda parts: [2, *parts[1:]]), OtherSettings, "has version 2"),
    *(
        ("commit, forecast", lambda w, part=part: in_states(w, part, v=9), OtherSettings, "of another release")
        for part in ("capacity", "lead", "budget", "calibration", "trust")
    ),
    ("file: guard.json", first(lambda v: in_json(v, v=2)), msgspec.MsgspecError, "Invalid enum value 2"),
    ("file: guard.json", first(lambda v: in_json(v, later=1)), msgspec.MsgspecError, "unknown field"),
    ("file: words.json", first(lambda v: in_json(v, later=1)), msgspec.MsgspecError, "unknown field"),
]


@pytest.mark.parametrize(("name", "change", "error", "says"), REFUSED)
def test_what_cannot_be_understood_is_refused(name: str, change: Change, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        KINDS[name].read(change(wires_of(STORED[name])))
