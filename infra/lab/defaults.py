"""Defaults and limits of the measuring commands and of the Python API; imports nothing, so that help is fast."""

from __future__ import annotations

from typing import Final

TRAIN_SHARE: Final = 0.3
PROMPT_TOKENS: Final = "900:0.6"
OUTPUT_TOKENS: Final = "200:0.6"

MAX_STEPS: Final = 64
"""Longest prediction length of the forecasters that workers use."""
MAX_FORECAST_STEPS: Final = 1_000
"""Longest prediction length of `harmony forecast`: a day at five minutes, three times over."""
DEFAULT_LEVELS = "0.05,0.1,0.25,0.5,0.75,0.9,0.95"


MODELS = ("served", "network", "pool", "ridge", "seasonal_naive", "long_range")
