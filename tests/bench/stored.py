"""Results as the benches store them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]

RESULTS = Path(__file__).with_name("results")


def results(name: str) -> Document:
    """The document of a bench, by its file's name."""
    found: Document = json.loads((RESULTS / f"{name}.json").read_bytes())
    return found
