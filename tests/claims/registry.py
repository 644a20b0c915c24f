"""All claims: each module of `items` defines one `CLAIM`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from tests.bench.stored import results
from tests.claims.claim import Claim, Judgement

_HERE = Path(__file__).parent


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, by the name of its module.

    Raises:
        ValueError: an id is not the name of its module.
    """
    found = []
    for path in sorted((_HERE / "items").glob("*.py")):
        claim: Claim = import_module(f"tests.claims.items.{path.stem}").CLAIM
        if claim.id != path.stem.replace("_", "-"):
            raise ValueError(f"{path.name}: its claim calls itself {claim.id}")
        found.append(claim)
    return tuple(found)


def recorded(claim: Claim) -> Judgement:
    """The claim held against its last stored record."""
    return claim.judge(lambda measurement: results(measurement.record))
