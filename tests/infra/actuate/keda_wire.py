"""KEDA's messages as protoc compiles them from the proto file: an oracle for the ones built at run time."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

import infra.actuate

PROTO = Path(infra.actuate.__file__).parent / "externalscaler.proto"


@functools.cache
def compiled() -> Any:
    """The module `externalscaler_pb2`."""
    from grpc_tools import protoc

    out = Path(tempfile.mkdtemp(prefix="harmony-proto-"))
    done = protoc.main(["protoc", f"-I{PROTO.parent}", f"--python_out={out}", str(PROTO)])
    assert done == 0, "protoc does not take the file"
    sys.path.insert(0, str(out))
    try:
        import externalscaler_pb2
    finally:
        sys.path.remove(str(out))
    return externalscaler_pb2
