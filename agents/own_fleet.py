"""State belongs to one fleet: whoever finds another's under its topic prefix must not go on from it."""

from __future__ import annotations

from streams.log import OtherSettings


def check_fleet(stored: str, fleet: str, topic: str) -> None:
    """See that a commit record on this topic is of the fleet that the settings name.

    Raises:
        OtherSettings: it is another's; names the remedy.
    """
    if stored != fleet:
        raise OtherSettings(
            f"{topic} holds the state of fleet {stored!r}, the settings name {fleet!r}: give each fleet a topic prefix "
            "of its own, restore the name, or accept a new start with `harmony state reset`"
        )
