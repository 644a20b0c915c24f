"""The weights in the package; free of torch, for settings name them too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED_NAME, NO_NETWORK = "shipped", "none"
REACH_S: Final = 240.0  # ahead, at most, that a worker asks the shipped weights
SHIPPED: Final = Path(__file__).resolve().parent.parent / "weights"


def weights_folder(name: str) -> Path:
    """Of the weights in the package, or the folder that is named."""
    return SHIPPED if name == SHIPPED_NAME else Path(name)
