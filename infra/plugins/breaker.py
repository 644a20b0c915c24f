"""When to stop asking a plug-in for a while. Counted in calls, not in seconds: the same calls give the same again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """Closed until `failures` calls in a row fail; then `pause_calls` calls are skipped, and the next one is a trial.

    A trial that succeeds closes it; one that fails opens it again at once.
    """

    failures: int
    pause_calls: int
    _in_a_row: int = 0
    _to_skip: int = 0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.pause_calls < 1:
            raise ValueError(f"failures {self.failures} and pause_calls {self.pause_calls} must be at least 1")

    @property
    def open(self) -> bool:
        """Whether calls are being skipped."""
        return self._to_skip > 0

    def allows(self) -> bool:
        """Whether this call may be made; one that may not counts towards the pause."""
        if self._to_skip > 0:
            self._to_skip -= 1
            return False
        return True

    def succeeded(self) -> None:
        """The call that was allowed came to a good end."""
        self._in_a_row = 0

    def failed(self) -> bool:
        """The call that was allowed did not; True where the pause begins."""
        self._in_a_row += 1
        if self._in_a_row < self.failures:
            return False
        self._to_skip = self.pause_calls
        return True
