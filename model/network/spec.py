"""The shape of a network, which is stored beside its weights, and where the shipped weights are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SPEC_VERSION = 3
MAX_HORIZON = 64
MAX_INDICATORS = 32


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Shape of a network.

    Attributes:
        version: of inputs and weights; another version is refused.
        width: of a token.
        hidden: of the residual blocks that read an indicator's features.
        num_blocks: residual blocks.
        num_attention: cascading attention layers.
        num_heads: attention heads of each layer.
        latents: numbers that a token gives to each step of the horizon.
        head_hidden: width of the head that all steps share.
        num_atoms: recently seen values that may carry mass of their own.
        attention: "cascade" (level l sees its own and the level before), "flat" (all see all) or "none".
        marginal: "spline" (rational-quadratic, with atoms), or "gaussian" for comparison.
        tail: share of the outermost intervals (beyond the .02 and .98 quantiles) that remains. Few futures teach them,
            and the peak of many steps depends on them.
        seasons: whether the cycles of a day and a week are read.
        places: whether an atom's weight may depend on its rank by value, which tells the states of a device apart. Only
            adapted networks have it.
    """

    version: int = SPEC_VERSION
    width: int = 192
    hidden: int = 384
    num_blocks: int = 3
    num_attention: int = 2
    num_heads: int = 4
    latents: int = 16
    head_hidden: int = 96
    num_atoms: int = 12
    attention: Literal["cascade", "flat", "none"] = "cascade"
    marginal: Literal["spline", "gaussian"] = "spline"
    tail: float = 0.3
    seasons: bool = True
    places: bool = False

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: a field is out of range; the message names it.
        """
        if self.version != SPEC_VERSION:
            raise ValueError(f"the spec is of version {self.version}, this program reads version {SPEC_VERSION}")
        for name in ("width", "hidden", "num_blocks", "num_heads", "latents", "head_hidden", "num_atoms"):
            if not 1 <= getattr(self, name) <= 4096:
                raise ValueError(f"{name} {getattr(self, name)} is not within 1..4096")
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}")
        if not 0 <= self.num_attention <= 16:
            raise ValueError(f"num_attention {self.num_attention} is not within 0..16")
        if not 0.01 <= self.tail <= 10:
            raise ValueError(f"tail {self.tail} is not within .01..10")
        choices = {"attention": ("cascade", "flat", "none"), "marginal": ("spline", "gaussian")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")


# The weights in the package. This module imports no torch, because the settings read it too.


SHIPPED_NAME, NO_NETWORK = "shipped", "none"
REACH_S: Final = 240.0  # seconds ahead for which a worker uses the shipped weights
SHIPPED: Final = Path(__file__).resolve().parent.parent / "weights"


def weights_folder(name: str) -> Path:
    """The folder of the weights in the package, or the named folder."""
    return SHIPPED if name == SHIPPED_NAME else Path(name)
