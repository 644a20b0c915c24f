"""Data sheets of the accelerators that engines run on: dense 16-bit FLOPS, memory bandwidth, memory."""

from __future__ import annotations

from typing import Final

from infra.console.errors import HarmonyError
from model.capacity.roofline import Accelerator


def _sheet(tflops: float, gbytes_per_s: float, gbytes: float) -> Accelerator:
    return Accelerator(tflops * 1e12, gbytes_per_s * 1e9, gbytes * 1e9)


# As the makers state them: without sparsity, accumulating in 32 bits.
ACCELERATORS: Final[dict[str, Accelerator]] = {
    "t4": _sheet(65, 320, 16),
    "v100-32gb": _sheet(125, 900, 32),
    "a10": _sheet(125, 600, 24),
    "l4": _sheet(121, 300, 24),
    "l40s": _sheet(362, 864, 48),
    "a100-40gb": _sheet(312, 1_555, 40),
    "a100-80gb": _sheet(312, 2_039, 80),
    "h100-pcie": _sheet(756, 2_000, 80),
    "h100": _sheet(989, 3_350, 80),
    "h200": _sheet(989, 4_800, 141),
    "b200": _sheet(2_250, 8_000, 180),
    "mi300x": _sheet(1_307, 5_300, 192),
}


def accelerator_of(name: str) -> Accelerator:
    """The data sheet of that name, however its letters are written.

    Raises:
        HarmonyError: there is none (exit code 2).
    """
    found = ACCELERATORS.get(name.strip().lower())
    if found is None:
        raise HarmonyError(f"Unknown GPU {name!r}: choose from {', '.join(ACCELERATORS)}.", 2)
    return found
