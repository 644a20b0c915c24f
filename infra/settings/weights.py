"""Which weights may be loaded: where digests are listed, only those files; what ships with the package always may."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

from model.network.spec import NO_NETWORK, SHIPPED_NAME

_FILE = "weights.safetensors"


def allowed_weights(weights: str, digests: Collection[str], on_refusal: Callable[[str], None]) -> str:
    """The weights as they were named, or `none` where they are not on the list.

    Args:
        weights: as in `advanced.model.weights`.
        digests: SHA-256, hexadecimal, of weight files that may be loaded; empty = any.
        on_refusal: told why not.
    """
    if weights in (NO_NETWORK, SHIPPED_NAME) or not digests:
        return weights
    path = Path(weights) / _FILE
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        on_refusal(f"{path}: {error.strerror or error}")
        return NO_NETWORK
    if digest in digests:
        return weights
    on_refusal(
        f"{path}: its SHA-256 {digest} is not in advanced.model.allowed_digests; the baselines forecast. Add it there "
        "once you know where the file comes from"
    )
    return NO_NETWORK
