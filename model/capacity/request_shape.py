"""Whether the requests of a service stay alike: how many tokens one has, of late and usually.

Capacity in requests/s holds for requests of one shape. Where answers become ten times as long for half an hour, the
same replica carries a tenth of the requests, and learns the old figure again in the calm that follows. The tokens/s it
generates hardly change then; so a service whose answers have been seen to change is counted in these.
Pure: float64 arithmetic, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

# Smallest ratio of the recent to the usual length that counts as a change.
_MIN_VARIATION_RATIO: Final = 2.0
# The same for a change that lasts.
_MIN_SHIFT_RATIO: Final = 1.5
# Duration of a change that lasts.
_SHIFT_DURATION_MS: Final = 600_000
# Work of a prompt token relative to a generated one.
_PROMPT_TOKEN_WORK: Final = 1.0 / 12.0
# Averaging time of the usual length.
_AVERAGING_MS: Final = 86_400_000
# Time for which a service counts as varying after a change.
_VARYING_MS: Final = 86_400_000
# Most time that a gap in the telemetry counts for.
_MAX_GAP_MS: Final = 600_000


class Lengths(NamedTuple):
    """Mean tokens of recent requests: of their prompts, and generated; surely no fewer and no more of these.

    Attributes:
        settled: about as many requests came as were answered, so that the means are those of a request. While a queue
            grows the generated tokens of most are still to come, and while it shrinks there are those of others.
    """

    prompt: float
    output: float
    least_output: float
    most_output: float
    settled: bool = True


class RequestShape:
    """Tokens per request of one workload, and whether its load should be counted in them."""

    __slots__ = ("_end_ts_ms", "_shifted_ms", "_usual", "_varied_ms")

    def __init__(self) -> None:
        self._end_ts_ms: int | None = None
        self._varied_ms: int | None = None
        self._shifted_ms: int | None = None  # since when requests have been other ones; None = they are as usual
        self._usual: tuple[float, float] | None = None  # logs of the tokens generated, and of the work in all

    def observe(self, end_ts_ms: int, lengths: Lengths | None) -> bool:
        """Fold one closed slot; slots come in order.

        Args:
            lengths: of late; None where too few requests are known.

        Returns:
            Whether within the last day answers were so long that they made a request twice as much work as usual, or
            half, or for ten minutes one and a half times as much: where prompts are most of the work, answers tell
            little of the load.
        """
        elapsed_ms = 0 if self._end_ts_ms is None else min(max(end_ts_ms - self._end_ts_ms, 0), _MAX_GAP_MS)
        self._end_ts_ms = end_ts_ms
        if lengths is not None and lengths.output > 0 and (lengths.settled or self._usual is not None):
            now = math.log(lengths.output), math.log(lengths.output + _PROMPT_TOKEN_WORK * lengths.prompt)
            usual = self._usual or now
            change = _change(lengths, usual)
            if change < math.log(_MIN_SHIFT_RATIO):
                self._shifted_ms = None
            elif self._shifted_ms is None:
                self._shifted_ms = end_ts_ms
            stays = self._shifted_ms is not None and end_ts_ms - self._shifted_ms >= _SHIFT_DURATION_MS
            if stays or change > math.log(_MIN_VARIATION_RATIO):
                self._varied_ms = end_ts_ms
            follow = -math.expm1(-elapsed_ms / _AVERAGING_MS)
            self._usual = usual[0] + (now[0] - usual[0]) * follow, usual[1] + (now[1] - usual[1]) * follow
        return self._varied_ms is not None and end_ts_ms - self._varied_ms <= _VARYING_MS

    @property
    def output_tokens(self) -> float | None:
        """Tokens that a request usually generates; None where that is not known."""
        return None if self._usual is None else math.exp(self._usual[0])

    def snapshot(self) -> list[float | int | None]:
        """Plain values; `restore` gives back the same bits. Empty where nothing has been seen."""
        return [] if self._usual is None else [self._end_ts_ms, self._varied_ms, *self._usual, self._shifted_ms]

    @classmethod
    def restore(cls, state: Sequence[float | int | None]) -> Self:
        """What a snapshot was taken of; earlier releases did not tell since when requests have been other ones.

        Raises:
            ValueError: the snapshot is of another version or damaged.
        """
        shape = cls()
        if not state:
            return shape
        if len(state) not in (4, 5) or state[0] is None or state[2] is None or state[3] is None:
            raise ValueError(f"the shape of requests is {list(state)!r}, not an end, a change and two logarithms")
        shape._end_ts_ms, shape._usual = int(state[0]), (float(state[2]), float(state[3]))
        shape._varied_ms = None if state[1] is None else int(state[1])
        shape._shifted_ms = None if len(state) == 4 or state[4] is None else int(state[4])
        return shape


def _change(lengths: Lengths, usual: tuple[float, float]) -> float:
    """By how much answers surely are longer or shorter than usual, and the work of a request by them: its logarithm."""
    prompts = math.exp(usual[1]) - math.exp(usual[0])
    work = math.log(lengths.output + prompts) - usual[1]
    longer = min(math.log(lengths.least_output) - usual[0], work)
    shorter = min(usual[0] - math.log(lengths.most_output), -work)
    return max(longer, shorter)
