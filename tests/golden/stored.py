"""The stored records: written once per format, then only read.

`python -m tests.golden.stored` adds the kinds that are not stored yet; `--again NAME` stores one of them anew, for a
format that has a new version. The older record stays, for it must still be read; delete it by hand where nobody has it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.golden.kinds import Kind, Wire, kinds

BEFORE = ", before "
FILE = Path(__file__).parent / "records.json"


def load() -> dict[str, dict[str, Any]]:
    """By kind: `records` and what they `read` as."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def wires_of(entry: dict[str, Any]) -> list[Wire]:
    """The records of one kind."""
    return [
        Wire(_bytes(r["key"]), _bytes(r["value"]) or b"", tuple((n, _bytes(v) or b"") for n, v in r["headers"]))
        for r in entry["records"]
    ]


def entry_of(kind: Kind, wires: Sequence[Wire]) -> dict[str, Any]:
    """What is stored of one kind."""
    records = [
        {"key": _said(w.key), "headers": [[n, _said(v)] for n, v in w.headers], "value": _said(w.value)} for w in wires
    ]
    return {"topic": kind.topic, "records": records, "reads": kind.read(wires)}


def _said(data: bytes | None) -> Any:
    """Text where it is text, else hexadecimal digits."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return text if text.isprintable() or text.rstrip("\n").isprintable() else {"hex": data.hex()}


def _bytes(said: Any) -> bytes | None:
    if said is None:
        return None
    return bytes.fromhex(said["hex"]) if isinstance(said, dict) else str(said).encode()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--again", action="append", default=[])
    again = options.parse_args().again
    stored = load()
    for kind in kinds():
        if kind.name not in stored or kind.name in again:
            if kind.name in stored:
                earlier = sum(name.startswith(kind.name + BEFORE) for name in stored)
                stored[f"{kind.name}{BEFORE}{earlier + 1}"] = stored[kind.name]
            stored[kind.name] = entry_of(kind, kind.first() if kind.first else kind.write(()))
            print(f"stored: {kind.name}")
    lines = [f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in stored.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
