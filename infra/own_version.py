"""The version of HARMONY that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """As installed; "unknown" where the source runs without having been."""
    try:
        return version("harmony-scaler")
    except PackageNotFoundError:
        return "unknown"
