"""Weights in the package, by name; free of torch, for settings name them too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED_NAME, LOADS_NAME, NO_NETWORK = "shipped", "loads", "none"
DEFAULT_NAME: Final = LOADS_NAME  # what a worker serves unless told otherwise
SHIPPED: Final = Path(__file__).resolve().parent.parent / "weights"
PACKAGED: Final = {
    SHIPPED_NAME: SHIPPED,
    LOADS_NAME: SHIPPED.with_name("weights_loads"),  # the same, trained on with request loads
}


def weights_folder(name: str) -> Path:
    """Of weights in the package by their name, or the folder that is named."""
    return PACKAGED.get(name) or Path(name)
