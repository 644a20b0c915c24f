"""What holds where an option of `harmony replay` for one kind of load is not given; imports nothing, for the help."""

from __future__ import annotations

from typing import Final

TRAIN_SHARE: Final = 0.3
PROMPT_TOKENS: Final = "900:0.6"
OUTPUT_TOKENS: Final = "200:0.6"


DEFAULT_LEVELS = "0.05,0.1,0.25,0.5,0.75,0.9,0.95"


MODELS = ("served", "network", "pool", "ridge", "seasonal_naive")
