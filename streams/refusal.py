"""Names what is wrong with a record that the fast parser refused."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from streams.catalogue import Source
from streams.records import strict_json
from streams.records.limits import refuse_instant
from streams.records.schema import VERSION
from streams.records.strict_json import HugeInt, MalformedError
from streams.wire import KINDS


def explain_refusal(value: bytes, complaint: Exception, source: Source) -> NoReturn:
    """Read the bytes again, slowly.

    Args:
        complaint: the fast parser's; the last resort.
        source: the topic's, which takes only some kinds.

    Raises:
        MalformedError: always, with the code and the words for whoever wrote the record.
    """
    body = strict_json.read(value)
    if not isinstance(body, dict):
        raise MalformedError("schema", f"a record is a JSON object, this is {_type_name(body)}")
    version, kind = body.get("v"), body.get("kind")
    if type(version) is int and version != VERSION:
        raise MalformedError("version", f"v is {version}, this reader knows {VERSION}")
    kinds = KINDS[source]
    if isinstance(kind, str) and not isinstance(kind, HugeInt) and kind not in kinds:
        raise MalformedError("kind", f"kind {kind[:32]!r} is not for this topic, which takes {', '.join(kinds)}")
    times = body.pop("ts_ms", None)
    for ts_ms in times if isinstance(times, list) else [times]:
        if isinstance(ts_ms, HugeInt):
            refuse_instant(ts_ms)
    if _has_huge_int(body):
        raise MalformedError("range", "an integer has more digits than any measurement")
    # The parser knows JSON faults that the slow reading lets pass, such as half of a surrogate pair.
    raise MalformedError("schema" if isinstance(complaint, msgspec.ValidationError) else "decode", str(complaint))


def _has_huge_int(body: Any) -> bool:
    if isinstance(body, HugeInt):
        return True
    children = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return any(_has_huge_int(child) for child in children)


def _type_name(body: Any) -> str:
    if body is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (list, "an array"), (HugeInt, "a number"), (str, "a string")):
        if isinstance(body, kind):
            return name
    return "a number"
