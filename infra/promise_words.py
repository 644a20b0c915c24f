"""Which promise of the SLO gives way first, in words: for `harmony explain` and the page."""

from __future__ import annotations

from agents.records import Decision, PromiseCapacity
from streams.catalogue import ARRIVAL_RATE

_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}


def load_unit(decision: Decision) -> str:
    """What load and capacity are counted in."""
    return "req/s" if decision.forecast.indicator == ARRIVAL_RATE else "tokens/s"


def words_of_promises(decision: Decision) -> list[str]:
    """`TPOT gives way first: a replica keeps it up to 2.1 req/s (1.9 to 2.4), TTFT up to 3 (2.6 to 3.9)`, if known.

    And by what share of requests each is expected to be missed.
    """
    unit = load_unit(decision)
    match decision.risk.promises:
        case [only]:
            other = next(name for promise, name in _NAMES.items() if promise != only.promise)
            kept = f"a replica keeps it {_up_to(only, unit)}"
            told = f"{_name(only)} gives way first: {kept}; {other} is not known to have been missed"
        case [first, second] if _surely(first, second):
            kept = f"a replica keeps it {_up_to(first, unit)}"
            told = f"{_name(first)} gives way first: {kept}, {_name(second)} {_up_to(second)}"
        case [first, second]:
            kept = f"a replica keeps {_name(first)} {_up_to(first, unit)}"
            told = f"it is not clear which promise gives way first: {kept}, {_name(second)} {_up_to(second)}"
        case _:
            return []
    missed = ", ".join(f"{_name(one)} by {100 * one.miss_share:.2f} %" for one in decision.risk.promises)
    return [f"{told}; missed at the expected peak: {missed}"]


def _surely(first: PromiseCapacity, second: PromiseCapacity) -> bool:
    """Whether the middle of neither lies within what is believed possible of the other."""
    (_, middle, high), (low, other, _) = _shown(first), _shown(second)
    return middle < low and high < other


def _up_to(one: PromiseCapacity, unit: str = "") -> str:
    low, middle, high = _shown(one)
    return f"up to {middle:.3g}{' ' if unit else ''}{unit} ({low:.3g} to {high:.3g})"


def _shown(one: PromiseCapacity) -> tuple[float, float, float]:
    values = one.capacity.values
    return values[0], values[len(values) // 2], values[-1]


def _name(one: PromiseCapacity) -> str:
    return _NAMES[one.promise]
