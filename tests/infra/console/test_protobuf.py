"""The committed descriptor sets are those of the `.proto` files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from infra.console.protobuf import PROTO_FILES, message_classes, write_descriptor_set


@pytest.mark.parametrize("proto", PROTO_FILES, ids=lambda path: path.stem)
def test_the_committed_descriptor_set_is_current(proto: Path, tmp_path: Path) -> None:
    write_descriptor_set(proto, tmp_path / "new.binpb")
    current = (tmp_path / "new.binpb").read_bytes() == proto.with_suffix(".binpb").read_bytes()
    assert current, "python -m infra.console.protobuf"


def test_every_proto_file_is_listed() -> None:
    root = PROTO_FILES[0].parents[1]
    assert sorted(root.rglob("*.proto")) == sorted(PROTO_FILES)


def test_messages_survive_the_wire() -> None:
    request = message_classes(PROTO_FILES[1], import_module)["harmony.remote_write.WriteRequest"]
    sent = request(timeseries=[{"labels": [{"name": "a", "value": "b"}], "samples": [{"value": 1.5, "timestamp": 7}]}])
    assert request.FromString(sent.SerializeToString()) == sent
