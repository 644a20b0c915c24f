"""Why a contestant that the tables know is not in them."""

from __future__ import annotations


class NotRun(Exception):
    """A contestant that cannot run here; the sentence says what is missing, and goes into the table."""
