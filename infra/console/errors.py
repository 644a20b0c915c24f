"""The one error a user sees: a sentence with what happened, where, and what to do."""

from __future__ import annotations


class HarmonyError(Exception):
    """A mistake or a fault that a person can act on; printed without a stack trace.

    Attributes:
        message: one or two sentences: what, where, what to do.
        exit_code: 1 for a fault, 2 for wrong usage.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
