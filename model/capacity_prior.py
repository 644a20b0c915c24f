"""Where a capacity is believed to lie beside what its evidence says load by load."""

from __future__ import annotations

import math
from typing import Final

from model.capacity.evidence import LoadEvidence
from model.capacity.grid import SPACING, Prior
from model.slot_evidence import CLUMP

LOWEST: Final = -310  # lattice index of 9e-5 requests/s; the last one is at 1.2e5
_DECLARED_SIGMA: Final = 0.25  # of log capacity around a declared one, where nobody says how far it may be off
LOAD_TEST_OFF_BY: Final = math.exp(_DECLARED_SIGMA)
_LEARNED_SIGMA: Final = 1.0  # of log capacity around the loads seen, and around a declared one that is wrong
_WRONG: Final = 0.02  # chance that a declared capacity is far off
_LEARNED_SHIFT: Final = 0.4  # ... a little above them: they were carried


def prior_of(declared_rps: float | None, evidence: LoadEvidence, off_by: float | None = None) -> Prior:
    """Around the declared figure, or around the loads seen.

    Args:
        off_by: factor that the declared figure may be off by, either way, two times of three.

    Raises:
        ValueError: nothing is declared and no load has been seen yet.
    """
    if declared_rps is not None:
        sigma = _DECLARED_SIGMA if off_by is None else math.log(off_by)
        return Prior(math.log(declared_rps), sigma, max(_LEARNED_SIGMA, sigma), _WRONG)
    carried = evidence.highest_good(CLUMP)  # one good slot's worth was seen there or above
    if carried is not None:
        return Prior((carried + LOWEST) * SPACING + _LEARNED_SHIFT, _LEARNED_SIGMA, _LEARNED_SIGMA, _WRONG)
    mean = evidence.mean()
    if mean is None:
        raise ValueError("capacity is unknown: none is declared and no load has been seen")
    return Prior((mean + LOWEST) * SPACING, _LEARNED_SIGMA, _LEARNED_SIGMA, _WRONG)
