"""Workers of two fleets under one topic prefix are one group: whoever plans refuses the state of the other."""

from __future__ import annotations

import msgspec
import pytest

from agents.forecast.commit import decode_commit
from streams.log import OtherSettings
from tests.golden import specimens as sp


def stored(fleet: str) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(sp.learned(), fleet=fleet))


def test_the_state_of_another_fleet_is_refused_with_the_remedy() -> None:
    with pytest.raises(OtherSettings, match=r"fleet 'east', the settings name 'west': .* prefix of its own"):
        decode_commit(stored("east"), sp.STREAM, 1, "west")


def test_the_state_of_its_own_and_of_releases_that_told_no_fleet_are_taken_over() -> None:
    assert decode_commit(stored("east"), sp.STREAM, 1, "east").fleet == "east"
    untold = msgspec.msgpack.decode(stored(""))
    del untold["fleet"]
    assert decode_commit(msgspec.msgpack.encode(untold), sp.STREAM, 1, "west").states
