"""Results of a measuring command as a JSON file: what `--json OUT` writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from infra.console.errors import HarmonyError

STDOUT = Path("-")


def plain(value: Any) -> Any:
    """With null in place of NaN and the infinities, which JSON does not know; tuples become lists."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(where: Path | None, body: Any) -> None:
    """Into a file, on one line of stdout for `-`, nowhere for None.

    Raises:
        HarmonyError: it cannot be written (exit code 2).
    """
    if where is None:
        return
    if where == STDOUT:
        print(json.dumps(plain(body)), flush=True)
        return
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(plain(body), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise HarmonyError(f"--json: cannot write {where}: {error.strerror or error}.", 2) from None
