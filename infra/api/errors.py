"""Errors of the Python interface: the sentences of the command line, with parameters in place of options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from infra.console.errors import HarmonyError

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_LINE = re.compile(r"\bline (\d+)")


class InputError(HarmonyError, ValueError):
    """An argument or a table that cannot be used: what, where, what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 2)


# Tracebacks name it as its users import it.
InputError.__module__ = "harmony"


def python_sentence(message: str) -> str:
    """A sentence of the command line as a Python user reads it; tables have rows, as `df.iloc` counts them.

    >>> python_sentence("df, line 3: item 'web' does not keep a step; give a coarser --step or --mean-rate.")
    "df, row 3: item 'web' does not keep a step; give a coarser step or mean_rate."
    """
    return _LINE.sub(r"row \1", _OPTION.sub(_parameter, message))


@contextmanager
def python_errors(*, of_table: bool = True) -> Iterator[None]:
    """Around a call of what the command line calls too.

    Args:
        of_table: lines in sentences are rows of a DataFrame.

    Raises:
        InputError: in place of a `HarmonyError` for wrong usage.
        HarmonyError: in place of any other.
    """
    try:
        yield
    except InputError:
        raise
    except HarmonyError as error:
        message = python_sentence(error.message) if of_table else _OPTION.sub(_parameter, error.message)
        raise (InputError(message) if error.exit_code == 2 else HarmonyError(message)) from None


def _parameter(option: re.Match[str]) -> str:
    return option[1].replace("-", "_")
